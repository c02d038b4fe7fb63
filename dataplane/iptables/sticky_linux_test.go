package iptables

import (
	"context"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// sticky is web with affinity.
func (r *rig) sticky(servers ...int) *balancer.Frontend {
	f := r.web(balancer.TCP, servers...)
	f.AffinityTimeout = time.Hour
	return f
}

// TestClientsStay has a client stay on its endpoint while others come and go, over a restart too, and has none be sent
// to a new endpoint only because it got the place of one that went.
func TestClientsStay(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2, 3, 4))
		_, mine := r.ask(balancer.TCP)
		stays := func(what string, servers ...int) {
			r.Helper()
			r.apply(r.sticky(servers...))
			for range 4 {
				if _, name := r.ask(balancer.TCP); name != mine {
					r.Fatalf("after %s the client of %s comes to %s", what, mine, name)
				}
			}
		}
		my := int(mine[1] - '0')
		stays("all others went", my)
		stays("others came", my, 5, 6, 7)
		stays("they went in another order", 7, my)
		r.restart()
		stays("a restart", my, 2, 3)
		stays("a restart and another", my, 3)

		r.apply(r.sticky(5, 6)) // its place is free
		_, mine = r.ask(balancer.TCP)
		stays("its endpoint went", 5, 6)
		places := r.d.families[inet.IPv4].fronts[r.sticky().Key].slots
		if len(places) != 2 {
			r.Fatalf("%d endpoints have places, want 2", len(places))
		}
	})
}

// TestClientsStayWhereTheyMoved has an endpoint drain over a restart, after which nothing tells which place it has.
func TestClientsStayWhereTheyMoved(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2, 3))
		r.apply(r.sticky(3))
		r.ask(balancer.TCP) // notes the client in place 1
		drained := r.sticky(2, 3)
		drained.Backends[1].State = balancer.Draining
		r.apply(r.sticky(2, 3))
		r.apply(drained)
		r.restart()
		r.apply(drained)
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Fatalf("while s3 drains, %s answers", name)
		}
		r.apply(r.sticky(3, 2))
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Errorf("after s3 drained, %s answers a client that moved to s2", name)
		}
	})
}

// restart has another dataplane take over what there is.
func (r *rig) restart() {
	r.Helper()
	if err := r.d.Close(context.Background(), true); err != nil {
		r.Fatal(err)
	}
	r.d = r.open(r.d.families[inet.IPv4].tool.Variant())
}

// TestPlacesAreEmptied has an endpoint that gets the place of another get none of its clients with it.
func TestPlacesAreEmptied(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2))
		r.ask(balancer.TCP) // notes the client in place 0
		f := r.sticky(3)    // which goes to another endpoint
		f.Backends = append(f.Backends, r.sticky(4).Backends...)
		r.apply(f)
		set := stickySet(0, inet.IPv4)
		entries, err := r.d.sets.List(set)
		if err != nil {
			r.Fatal(err)
		}
		if len(entries) > 0 {
			r.Errorf("%s has %v", set, entries)
		}
	})
}

// TestOneRefusalIsOneFrontends has the kernel refuse one frontend of many: the others are carried out, and the answer
// names it.
func TestOneRefusalIsOneFrontends(t *testing.T) {
	eachBackend(t, func(r *rig) {
		good, bad := r.web(balancer.TCP, 2), r.web(balancer.UDP, 2)
		bad.Proto = "nonsense"
		err := r.d.Apply(context.Background(), []dataplane.Change{{Key: bad.Key, New: bad}, {Key: good.Key, New: good}})
		each, ok := err.(dataplane.KeyErrors)
		if !ok || len(each) != 1 || each[bad.Key] == nil {
			r.Fatalf("got %v", err)
		}
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Errorf("%s answers", name)
		}
	})
}
