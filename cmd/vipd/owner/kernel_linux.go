package owner

import (
	"log/slog"
	"net/netip"

	onhost "vipd/dataplane/failover"
)

func newKernel(o onhost.KernelOptions) (Kernel, error) { return onhost.NewKernel(o) }

func newAdverts(received func(onhost.Advert), log *slog.Logger) adverts {
	return onhost.NewAdverts(received, log)
}

func advertSources(name string, vips []netip.Addr) ([]netip.Addr, error) {
	return onhost.AdvertSources(name, vips)
}
