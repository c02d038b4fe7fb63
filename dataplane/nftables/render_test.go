package nftables

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
)

// TestOwnChainFollowsFromName renders frontends with foreign endpoints. ownChainOf must derive the
// name in ownChain from the name of the frontend's chain, because a new process reads only names.
func TestOwnChainFollowsFromName(t *testing.T) {
	for _, scheduler := range []balancer.Scheduler{balancer.Random, balancer.RoundRobin, balancer.Maglev} {
		for _, prefix := range []int{0, 24} {
			f := &balancer.Frontend{
				Key: balancer.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: balancer.TCP}, Service: "web-or-vip-1",
				Policy: balancer.Policy{Scheduler: scheduler}, AffinityTimeout: time.Hour, AffinityScope: balancer.VIPScope, AffinityPrefix: prefix,
				Backends: []balancer.Backend{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), State: balancer.Active, Weight: 1}},
			}
			if got := ownChainOf(render(f).choice.chain(f.Key)); got != "" {
				t.Errorf("%s, prefix %d: own chain without foreign endpoints = %q, want none", scheduler, prefix, got)
			}
			inService := *f
			inService.AffinityScope, inService.Service = balancer.ServiceScope, "web-vip-or-1"
			if got := ownChainOf(render(&inService).choice.chain(f.Key)); got != "" {
				t.Errorf("%s, prefix %d: own chain with affinity for a service = %q, want none", scheduler, prefix, got)
			}
			f.Foreign = []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")}
			c := render(f).choice
			if got := ownChainOf(c.chain(f.Key)); got == "" || got != c.ownChain || got != c.withOwn().chain(f.Key) {
				t.Errorf("%s, prefix %d: own chain of %s = %q, want %q", scheduler, prefix, c.chain(f.Key), got, c.ownChain)
			}
			if n := len(c.foreignIDs()); n != 2 {
				t.Errorf("%s, prefix %d: foreign IDs = %d, want 2", scheduler, prefix, n)
			}
		}
	}
}
