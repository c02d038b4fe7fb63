package iptables

import (
	"context"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// TestRestartWritesNothing: a process that finds the rules as they should be goes on counting, and writes none of them.
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
			t.Errorf("counted %d connections, want 1", total)
		}
		y := r.d.families[inet.IPv4]
		if c := y.chains[y.fronts[f.Key].chain]; c.epoch != 0 || c.rules == 0 {
			t.Errorf("the chain was written though it was right: %+v", c)
		}
	})
}
