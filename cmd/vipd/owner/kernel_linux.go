package owner

import (
	"log/slog"
	"net"
	"net/netip"
	"time"

	"vipd/dataplane/ownership"
)

// NewKernel returns what makes the Kernel of this host.
func NewKernel(log *slog.Logger, gate, announce time.Duration) Maker {
	return func(interfaces []string, devices map[netip.Addr]string, rival func(netip.Addr, net.HardwareAddr)) (Kernel, error) {
		return ownership.NewKernel(ownership.KernelOptions{
			Gate: ownership.GateOptions{Timeout: gate}, Interfaces: interfaces, Devices: devices, AnnounceEvery: announce, Log: log,
			Rival: func(r ownership.Rival) { rival(r.VIP, r.MAC) },
		})
	}
}
