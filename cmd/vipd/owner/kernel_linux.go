package owner

import (
	"log/slog"
	"net/netip"

	onhost "vipd/dataplane/failover"
)

// newKernel returns the Kernel of this host.
func newKernel(o onhost.KernelOptions) (Kernel, error) { return onhost.NewKernel(o) }

// newAdverts returns the adverts of this host.
func newAdverts(received func(onhost.Advert), log *slog.Logger) adverts {
	return onhost.NewAdverts(received, log)
}

func advertSources(name string, vips []netip.Addr) ([]netip.Addr, error) {
	return onhost.AdvertSources(name, vips)
}
