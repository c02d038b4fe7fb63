package iptables

import (
	"context"
	"net/netip"
	"os/exec"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// counted returns the counters of the service "web". It always reads the kernel's counters again.
func (r *rig) counted() (total uint64, byBackend map[netip.AddrPort]dataplane.BackendCount, all dataplane.FrontendCount) {
	r.Helper()
	for _, y := range r.d.families {
		y.readings.Renew()
	}
	byBackend = map[netip.AddrPort]dataplane.BackendCount{}
	for _, f := range r.d.Counters() {
		if f.Service != "web" || f.Port != "http" {
			r.Fatalf("counters belong to service %s and port %s, want web and http", f.Service, f.Port)
		}
		total, all = total+f.Connections, f
		for _, b := range f.Backends {
			byBackend[b.Backend] = b
		}
	}
	return total, byBackend, all
}

// TestCountsSurvive replaces the rules that count connections in several ways. Afterwards, the
// counters must still include every connection.
func TestCountsSurvive(t *testing.T) {
	eachBackend(t, func(r *rig) {
		made := uint64(0)
		by := map[string]uint64{}
		step := func(what string, change func()) {
			r.Helper()
			change()
			for range 6 {
				_, name := r.ask(balancer.TCP)
				made++
				by[name]++
			}
			total, backends, _ := r.counted()
			if total != made {
				r.Errorf("after %s: counted connections = %d, want %d", what, total, made)
			}
			for name, n := range by {
				at := netip.AddrPortFrom(r.address(int(name[1]-'0')), 8080)
				if got := backends[at].Connections; got != n {
					r.Errorf("after %s: counted connections = %d at %s, want %d", what, got, name, n)
				}
			}
		}
		step("the start", func() { r.apply(r.web(balancer.TCP, 2, 3)) })
		step("nothing", func() {})
		step("an added endpoint", func() { r.apply(r.web(balancer.TCP, 2, 3, 4)) })
		step("a removed endpoint", func() { r.apply(r.web(balancer.TCP, 3, 4)) })
		step("the end of the service, and its return", func() {
			f := r.web(balancer.TCP, 3, 4)
			if err := r.d.Apply(context.Background(), []dataplane.Change{{Key: f.Key}}); err != nil {
				r.Fatal(err)
			}
			r.apply(f)
		})
		step("another service", func() {
			f := r.web(balancer.UDP, 3)
			r.apply(f)
		})
		step("the loss of all rules", func() {
			for _, program := range []string{"iptables-nft", "iptables-legacy"} {
				if out, err := exec.Command(program, "-t", "nat", "-F").CombinedOutput(); err != nil {
					r.Fatalf("flushing nat: %v: %s", err, out)
				}
			}
			if seen, err := r.d.Observe(context.Background()); err != nil || len(seen.Damage) == 0 {
				r.Fatalf("Observe = %v, %v; want a report of damage", seen, err)
			}
			r.apply(r.web(balancer.TCP, 3, 4), r.web(balancer.UDP, 3))
		})
	})
}

// TestCountsOutliveTheRules removes the rules that count connections, and makes the table
// unreadable. The counts must remain available.
func TestCountsOutliveTheRules(t *testing.T) {
	eachBackend(t, func(r *rig) {
		f := r.web(balancer.TCP, 2, 3)
		r.apply(f)
		const made = 6
		for range made {
			r.ask(balancer.TCP)
		}
		program := "iptables-" + string(r.d.families[inet.IPv4].tool.Variant())
		nat := func(args ...string) {
			r.Helper()
			if out, err := exec.Command(program, append([]string{"-t", "nat"}, args...)...).CombinedOutput(); err != nil {
				r.Fatalf("%s %v: %v: %s", program, args, err, out)
			}
		}
		nat("-N", "OTHER")
		nat("-A", "OTHER", "-j", frontChain(f.Key)) // this jump prevents the chain's deletion
		if err := r.d.Close(context.Background(), false); err == nil {
			r.Error("Close = nil, want an error")
		}
		unreadable, cancel := context.WithCancel(context.Background())
		cancel()
		for _, ctx := range []context.Context{unreadable, context.Background()} {
			total := uint64(0)
			for _, n := range r.d.families[inet.IPv4].counts(ctx) {
				total += n.All
			}
			if total != made {
				r.Errorf("counted connections = %d, want %d (%v)", total, made, ctx.Err())
			}
		}
		nat("-F", "OTHER")
		nat("-X", "OTHER")
		r.d = r.open(r.d.families[inet.IPv4].tool.Variant()) // the next dataplane removes the remaining rules
		if _, err := r.d.Observe(context.Background()); err != nil {
			r.Fatal(err)
		}
	})
}
