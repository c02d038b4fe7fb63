package guard

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"vipd/balancer"
)

type entries = map[setEntry]bool

func addresses(of ...map[netip.Addr]bool) entries {
	all := entries{}
	for _, addrs := range of {
		for a := range addrs {
			all[setEntry{Addr: a}] = true
		}
	}
	return all
}

// toggle adds a random address to all and calls count with 1, or removes an address and calls count
// with -1.
func toggle(r *rand.Rand, all map[netip.Addr]bool, network byte, count func(netip.Addr, int)) {
	a := netip.AddrFrom4([4]byte{10, network, 0, byte(r.IntN(3))})
	if all[a] {
		delete(all, a)
		count(a, -1)
		return
	}
	all[a] = true
	count(a, 1)
}

// edit adds, changes and removes random frontends.
func edit(r *rand.Rand, g *wanted, frontends map[balancer.Key]*balancer.Frontend) {
	for range r.IntN(4) {
		f := frontend(fmt.Sprintf("10.%d.0.%d:%d", 96+r.IntN(6), r.IntN(3), 80+r.IntN(2)))
		if r.IntN(4) == 0 {
			f.Key.Port = balancer.NewPortRange(80, 89)
			f.Open = [][]balancer.PortRange{nil, {f.Key.Port}, {80, balancer.NewPortRange(82, 89)}, {balancer.NewPortRange(82, 89)}}[r.IntN(4)]
		}
		f.Withdrawn = r.IntN(8) == 0
		if r.IntN(3) == 0 {
			sources([]string{"10.0.0.0/8", "0.0.0.0/0", "192.0.2.0/24", "198.51.100.0/24", "fd00::/8"}[r.IntN(5)], "198.51.100.7/32")(f)
		}
		switch r.IntN(6) {
		case 0, 1:
			dropping(f)
		case 2:
			f.Backends = nil
		case 3:
			f.Backends[0].State = []balancer.BackendState{balancer.Draining, balancer.Removed}[r.IntN(2)]
		}
		f.NodePort = r.IntN(4) == 0
		f.MSS = []int{0, 0, 1200, 1300}[r.IntN(4)]
		f.Movable = r.IntN(4) == 0
		if r.IntN(8) == 0 {
			f.Forward = []balancer.Forward{balancer.DRForward, balancer.TunnelForward}[r.IntN(2)]
		}
		if r.IntN(4) == 0 {
			f.Service = []balancer.Name{"web", "api"}[r.IntN(2)]
			f.Limits = []balancer.ClientLimits{
				{Connections: 5}, {SourceConnections: 1 + r.IntN(2), SourcePrefix: 24, Over: balancer.RejectOver},
				{SourceRate: balancer.Rate{N: 50, Per: time.Minute}, SourceConnections: 2, SourcePrefix: 32},
			}[r.IntN(3)]
		}
		for i := range f.Backends {
			f.Backends[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(3))}), 8080)
		}
		f.SNAT = []balancer.SNAT{balancer.AutoSNAT, balancer.AutoSNAT, balancer.AlwaysSNAT, balancer.NeverSNAT}[r.IntN(4)]
		if old := frontends[f.Key]; old != nil {
			g.want(old, -1, false)
			delete(frontends, f.Key)
			if r.IntN(2) == 0 {
				continue
			}
		}
		g.want(f, 1, false)
		frontends[f.Key] = f
	}
}
