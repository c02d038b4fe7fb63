package iptables

import (
	"context"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// sticky returns a TCP frontend with affinity whose endpoints are the servers with these numbers.
func (r *rig) sticky(servers ...int) *balancer.Frontend {
	f := r.web(balancer.TCP, servers...)
	f.AffinityTimeout = time.Hour
	return f
}

// TestClientsStay changes other endpoints and restarts the dataplane. A client must stay on its
// endpoint, even if a new endpoint gets a removed endpoint's slot.
func TestClientsStay(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2, 3, 4))
		_, mine := r.ask(balancer.TCP)
		stays := func(what string, servers ...int) {
			r.Helper()
			r.apply(r.sticky(servers...))
			for range 4 {
				if _, name := r.ask(balancer.TCP); name != mine {
					r.Fatalf("after %s: client of %s reaches %s, want the same endpoint", what, mine, name)
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

		r.apply(r.sticky(5, 6)) // the removed endpoint's slot is now free
		_, mine = r.ask(balancer.TCP)
		stays("its endpoint was removed", 5, 6)
		places := r.d.families[inet.IPv4].fronts[r.sticky().Key].slots
		if len(places) != 2 {
			r.Fatalf("endpoints with slots = %d, want 2", len(places))
		}
	})
}

// TestMovedClientsStay drains an endpoint and restarts the dataplane, so the endpoint loses its
// slot. The endpoint's clients move to another endpoint and must then stay there.
func TestMovedClientsStay(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2, 3))
		r.apply(r.sticky(3))
		r.ask(balancer.TCP) // the kernel records the client in the set of slot 1
		drained := r.sticky(2, 3)
		drained.Backends[1].State = balancer.Draining
		r.apply(r.sticky(2, 3))
		r.apply(drained)
		r.restart()
		r.apply(drained)
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Fatalf("while s3 drains: server = %s, want s2", name)
		}
		r.apply(r.sticky(3, 2))
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Errorf("after s3 has drained: server = %s, want s2", name)
		}
	})
}

// restart replaces the rig's dataplane with a new one, which adopts the existing rules.
func (r *rig) restart() {
	r.Helper()
	if err := r.d.Close(context.Background(), true); err != nil {
		r.Fatal(err)
	}
	r.d = r.open(r.d.families[inet.IPv4].tool.Variant())
}

// TestReusedSlotIsCleared gives an endpoint's slot to another endpoint. The new endpoint must not
// get the previous endpoint's clients.
func TestReusedSlotIsCleared(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2))
		r.ask(balancer.TCP) // the kernel records the client in the set of slot 0
		f := r.sticky(3)    // another endpoint gets the slot
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

// TestRefusedFrontend makes the kernel refuse one of many frontends. The other frontends must be
// applied, and the error must name the refused frontend.
func TestRefusedFrontend(t *testing.T) {
	eachBackend(t, func(r *rig) {
		good, bad := r.web(balancer.TCP, 2), r.web(balancer.UDP, 2)
		bad.Proto = "nonsense"
		err := r.d.Apply(context.Background(), []dataplane.Change{{Key: bad.Key, New: bad}, {Key: good.Key, New: good}})
		each, ok := err.(dataplane.KeyErrors)
		if !ok || len(each) != 1 || each[bad.Key] == nil {
			r.Fatalf("Apply = %v, want an error for only the refused frontend", err)
		}
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Errorf("server = %s, want s2", name)
		}
	})
}
