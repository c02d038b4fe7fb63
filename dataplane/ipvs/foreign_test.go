package ipvs

import (
	"context"
	"errors"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// TestKilledBesideForeign kills a process while it creates virtual servers. The next process must
// not treat a foreign virtual server as its own.
func TestKilledBesideForeign(t *testing.T) {
	for name, n := range map[string]int{"few": 2, "many": maxGroup + 2} {
		t.Run(name, func(t *testing.T) {
			k, dir := newKernel(), t.TempDir()
			at := func(n int) balancer.Key {
				return balancer.Key{Addr: key(0).Addr, Port: balancer.PortRange(1 + n), Proto: balancer.TCP}
			}
			var all []*balancer.Frontend
			for i := range n {
				all = append(all, web(at(i), 1))
			}
			theirs := ipvsnl.Service{Key: at(0), Scheduler: "rr"}
			if errs := k.Do(context.Background(), []ipvsnl.Op{
				{Verb: ipvsnl.AddService, Service: theirs},
				{Verb: ipvsnl.AddDestination, Service: theirs, Destination: ipvsnl.Destination{Addr: address(theirs.Key, 77), Forward: balancer.NATForward, Weight: 5}},
			}); errs != nil {
				t.Fatal(errs)
			}
			isTheirs := func(k balancer.Key) bool { return k == theirs.Key }
			before := k.text(t, isTheirs)
			p := start(t, k, dir)
			p.observe()
			k.lose = func(ipvsnl.Op) (bool, bool) { panic("killed") } // by now, the ledger names the virtual server
			func() {
				defer func() {
					if recover() == nil {
						t.Error("no virtual server was created, want one")
					}
				}()
				_ = p.Apply(context.Background(), changes(all...))
			}()
			k.lose = nil
			p.Dataplane = start(t, k, dir).Dataplane
			p.observe()
			for range 2 {
				err := p.Apply(context.Background(), changes(all...))
				each, ok := errors.AsType[dataplane.KeyErrors](err)
				if !ok || len(each) != 1 || each[theirs.Key] == nil {
					t.Fatalf("Apply = %v, want an error only for %s", err, theirs.Key)
				}
			}
			p.remove(all[0])
			if err := p.Close(context.Background(), false); err != nil {
				t.Fatal(err)
			}
			if got := k.text(t, every); got != before {
				t.Errorf("virtual servers =\n%swant\n%s", got, before)
			}
		})
	}
}

// TestForeignAtTheLastMoment makes another program create a virtual server just after vipd has
// checked that it does not exist. vipd must not change the virtual server or treat it as its own.
func TestForeignAtTheLastMoment(t *testing.T) {
	k := newKernel()
	p := start(t, k, t.TempDir())
	p.observe()
	f := web(key(0), 1)
	k.before = func(op ipvsnl.Op) {
		k.before = nil
		k.Fake.Do(context.Background(), []ipvsnl.Op{{Verb: ipvsnl.AddService, Service: ipvsnl.Service{Key: f.Key, Scheduler: "rr"}}})
	}
	if err := p.Apply(context.Background(), changes(f)); err == nil {
		t.Error("Apply = nil, want an error for a foreign virtual server")
	}
	p.restart(true)
	p.observe()
	p.remove(f)
	if got, want := k.text(t, every), "-A -t 10.96.0.0:80 -s rr\n"; got != want {
		t.Errorf("virtual servers =\n%swant\n%s", got, want)
	}
}
