package iptables

import (
	"context"
	"net/netip"
	"os/exec"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/xtables"
)

// TestRestartWritesNothing restarts the dataplane while the kernel has the correct rules. The new
// dataplane must not write any rules, and must continue the counts.
func TestRestartWritesNothing(t *testing.T) {
	eachBackend(t, func(r *rig) {
		f := r.web(balancer.TCP, 2)
		r.apply(f)
		r.ask(balancer.TCP)
		backend := r.d.families[inet.IPv4].tool.Variant()
		if err := r.d.Close(context.Background(), true); err != nil {
			t.Fatal(err)
		}
		r.d = r.open(backend)
		if err := r.d.Apply(context.Background(), []dataplane.Change{{Key: f.Key, Old: f, New: f}}); err != nil {
			t.Fatal(err)
		}
		if total, _, _ := r.counted(); total != 1 {
			t.Errorf("counted connections = %d, want 1", total)
		}
		y := r.d.families[inet.IPv4]
		if c := y.chains[y.fronts[f.Key].chain]; c.epoch != 0 || c.rules == 0 {
			t.Errorf("chain = %+v, want it not written again", c)
		}
	})
}

// TestRestartKeepsMovedRange restarts the dataplane after a range's endpoint ports have changed.
// The rules must contain only the new ports. The new dataplane must recognize the endpoint's port,
// and must write no rules.
func TestRestartKeepsMovedRange(t *testing.T) {
	eachBackend(t, func(r *rig) {
		f := r.web(balancer.TCP, 2)
		f.Key.Port = balancer.NewPortRange(7000, 7009) // endpoints serve 8080-8089
		f.Open = []balancer.PortRange{f.Key.Port}
		former := netip.AddrPortFrom(r.address(2), 7000)
		f.Backends = append([]balancer.Backend{{Addr: former, State: balancer.Removed, Weight: 1}}, f.Backends...)
		r.apply(f)
		backend := r.d.families[inet.IPv4].tool.Variant()
		if err := r.d.Close(context.Background(), true); err != nil {
			t.Fatal(err)
		}
		r.d = r.open(backend)
		y := r.d.families[inet.IPv4]
		x := y.fronts[f.Key]
		if x == nil || x.digest != r.d.Digest(f) || x.first != 8080 {
			t.Fatalf("frontend = %+v, want digest %x and the first port 8080", x, r.d.Digest(f))
		}
		if c := y.chains[x.below[0]]; len(x.below) != 1 || c.rules != 10 || c.targets[9] != netip.AddrPortFrom(r.address(2), 8089) {
			t.Errorf("chains below = %v, %+v, want one with 10 rules", x.below, c)
		}
		r.apply(f)
		if c := y.chains[x.chain]; c.epoch != 0 || c.rules == 0 {
			t.Errorf("chain = %+v, want it not written again", c)
		}
	})
}

// TestAnotherVariantTakesOver restarts the dataplane with the other iptables variant. The old rules
// must serve clients until the new rules do. If the change is interrupted, the next dataplane must
// complete it.
func TestAnotherVariantTakesOver(t *testing.T) {
	eachBackend(t, func(r *rig) {
		tcp, udp := r.web(balancer.TCP, 2), r.web(balancer.UDP, 2)
		r.apply(tcp, udp)
		former := r.d.families[inet.IPv4].tool
		rules, err := exec.Command("iptables-"+string(former.Variant())+"-save", "-t", table).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, servers := range []int{3, 3} { // in the second round, the new variant already has the desired rules
			if err := r.d.Close(context.Background(), true); err != nil {
				t.Fatal(err)
			}
			if _, server := r.ask(balancer.TCP); server == "" {
				t.Error("no server answered during the change")
			}
			r.d = r.open(map[xtables.Variant]xtables.Variant{xtables.NFT: xtables.Legacy, xtables.Legacy: xtables.NFT}[former.Variant()])
			seen, err := r.d.Observe(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range []*balancer.Frontend{tcp, udp} {
				if digest, there := seen.Digests[f.Key]; !there || digest != 0 {
					t.Errorf("digest of %s = %d, %t; want 0, true", f.Key, digest, there)
				}
			}
			if err := r.d.Apply(context.Background(), []dataplane.Change{{Key: tcp.Key, New: r.web(balancer.TCP, servers)}, {Key: udp.Key}}); err != nil {
				t.Fatal(err)
			}
			if _, server := r.ask(balancer.TCP); server != "s3" {
				t.Errorf("server = %s, want s3", server)
			}
			if left, err := former.Chains(context.Background(), table, isOurs); err != nil || len(left) > 0 {
				t.Errorf("chains of %s after the change = %v, %v; want none", former.Variant(), left, err)
			}
			if err := former.Restore(context.Background(), string(rules)); err != nil {
				t.Fatal(err)
			}
		}
		if err := remove(context.Background(), former); err != nil {
			t.Error(err)
		}
	})
}
