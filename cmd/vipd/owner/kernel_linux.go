package owner

import (
	"log/slog"
	"time"

	"vipd/dataplane/failover"
)

// NewKernel returns what makes the Kernel of this host.
func NewKernel(log *slog.Logger, gate, announce time.Duration) Maker {
	return func(p places, h Hears) (Kernel, error) {
		k, err := failover.NewKernel(failover.KernelOptions{
			Gate: failover.GateOptions{Timeout: gate}, Places: p.inKernel(), Told: p.told, AnnounceEvery: announce, Log: log,
			Rival: func(r failover.Rival) { h.Rival(r.VIP, r.MAC) }, Gone: h.Gone, Reached: h.Reached,
		})
		if err != nil {
			return nil, err
		}
		return &kernel{k}, nil
	}
}

// kernel is the Kernel of this host.
type kernel struct{ *failover.Kernel }

// Cover implements Kernel.
func (k *kernel) Cover(p places) error { return k.Kernel.Cover(p.inKernel()) }

func (p places) inKernel() failover.Places {
	return failover.Places{Interfaces: p.interfaces(), Devices: p.devices, Reach: p.reach}
}
