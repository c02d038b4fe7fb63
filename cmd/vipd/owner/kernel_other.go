//go:build !linux

package owner

import (
	"errors"
	"log/slog"
	"net/netip"

	onhost "vipd/dataplane/failover"
)

// newKernel returns an error, because owning VIPs requires Linux.
func newKernel(onhost.KernelOptions) (Kernel, error) {
	return nil, errors.New("owning VIPs needs Linux")
}

// newAdverts is never called, because no core is created without a Kernel.
func newAdverts(func(onhost.Advert), *slog.Logger) adverts { return nil }

func advertSources(string, []netip.Addr) ([]netip.Addr, error) { return nil, nil }
