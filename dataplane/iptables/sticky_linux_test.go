package iptables

import (
	"context"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// sticky returns a TCP frontend of these servers with affinity.
func (r *rig) sticky(servers ...int) *balancer.Frontend {
	f := r.web(balancer.TCP, servers...)
	f.AffinityTimeout = time.Hour
	return f
}

// TestClientsStay changes other endpoints, and restarts. A client must stay on its endpoint, and
// must not move to an endpoint that gets the slot of a removed endpoint.
func TestClientsStay(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2, 3, 4))
		_, mine := r.ask(balancer.TCP)
		stays := func(what string, servers ...int) {
			r.Helper()
			r.apply(r.sticky(servers...))
			for range 4 {
				if _, name := r.ask(balancer.TCP); name != mine {
					r.Fatalf("after %s, the client of %s is sent to %s, want the same endpoint", what, mine, name)
				}
			}
		}
		my := int(mine[1] - '0')
		stays("all others were removed", my)
		stays("others came", my, 5, 6, 7)
		stays("they returned in another order", 7, my)
		r.restart()
		stays("a restart", my, 2, 3)
		stays("a restart and another", my, 3)

		r.apply(r.sticky(5, 6)) // the slot of the removed endpoint is free
		_, mine = r.ask(balancer.TCP)
		stays("its endpoint was removed", 5, 6)
		places := r.d.families[inet.IPv4].fronts[r.sticky().Key].slots
		if len(places) != 2 {
			r.Fatalf("endpoints with slots = %d, want 2", len(places))
		}
	})
}

// TestMovedClientsStay drains an endpoint across a restart, so the endpoint loses its slot. Clients
// that moved must stay on their new endpoint.
func TestMovedClientsStay(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2, 3))
		r.apply(r.sticky(3))
		r.ask(balancer.TCP) // records the client in slot 1
		drained := r.sticky(2, 3)
		drained.Backends[1].State = balancer.Draining
		r.apply(r.sticky(2, 3))
		r.apply(drained)
		r.restart()
		r.apply(drained)
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Fatalf("answer from %s while s3 drains, want s2", name)
		}
		r.apply(r.sticky(3, 2))
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Errorf("answer from %s after s3 drained, want s2", name)
		}
	})
}

// restart starts another dataplane over the existing rules.
func (r *rig) restart() {
	r.Helper()
	if err := r.d.Close(context.Background(), true); err != nil {
		r.Fatal(err)
	}
	r.d = r.open(r.d.families[inet.IPv4].tool.Variant())
}

// TestReusedSlotIsCleared assigns the slot of one endpoint to another. The new endpoint must get no
// clients of the former one.
func TestReusedSlotIsCleared(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2))
		r.ask(balancer.TCP) // records the client in slot 0
		f := r.sticky(3)    // the slot moves to another endpoint
		f.Backends = append(f.Backends, r.sticky(4).Backends...)
		r.apply(f)
		set := stickySet(0, inet.IPv4)
		entries, err := r.d.sets.List(set)
		if err != nil {
			r.Fatal(err)
		}
		if len(entries) > 0 {
			r.Errorf("entries of %s = %v, want none", set, entries)
		}
	})
}

// TestRefusedFrontend makes the kernel refuse one of many frontends. The others must be applied,
// and the error must name the refused frontend.
func TestRefusedFrontend(t *testing.T) {
	eachBackend(t, func(r *rig) {
		good, bad := r.web(balancer.TCP, 2), r.web(balancer.UDP, 2)
		bad.Proto = "nonsense"
		err := r.d.Apply(context.Background(), []dataplane.Change{{Key: bad.Key, New: bad}, {Key: good.Key, New: good}})
		each, ok := err.(dataplane.KeyErrors)
		if !ok || len(each) != 1 || each[bad.Key] == nil {
			r.Fatalf("error of Apply = %v, want one for the refused frontend", err)
		}
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Errorf("answer from %s, want s2", name)
		}
	})
}
