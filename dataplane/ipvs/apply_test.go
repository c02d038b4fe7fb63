package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// TestMessagesOfOneChange changes one of 300 frontends in several ways. Apply must send only the
// listed messages. Their order must ensure that an endpoint can always get new connections.
func TestMessagesOfOneChange(t *testing.T) {
	const all = 300
	for name, c := range map[string]struct {
		change func(f *balancer.Frontend) *balancer.Frontend
		want   string
	}{
		"none":  {func(f *balancer.Frontend) *balancer.Frontend { return web(f.Key, 1, 2, 3) }, ""},
		"added": {func(f *balancer.Frontend) *balancer.Frontend { return web(f.Key, 1, 2, 3, 4) }, "add 4"},
		"weight": {func(f *balancer.Frontend) *balancer.Frontend {
			return with(f, 2, func(b *balancer.Backend) { b.Weight = 7 })
		}, "edit 2 to 7"},
		"removed":  {func(f *balancer.Frontend) *balancer.Frontend { return web(f.Key, 1, 3) }, "delete 2"},
		"replaced": {func(f *balancer.Frontend) *balancer.Frontend { return web(f.Key, 1, 3, 4) }, "add 4, delete 2"},
		"drains": {func(f *balancer.Frontend) *balancer.Frontend {
			return drained(f, 2, balancer.Removed, time.Now().Add(time.Hour))
		}, "edit 2 to 0"},
		"drained and replaced": {func(f *balancer.Frontend) *balancer.Frontend {
			return drained(web(f.Key, 1, 2, 3, 4), 2, balancer.Removed, time.Now().Add(time.Hour))
		}, "add 4, edit 2 to 0"},
		"idle and drained": {func(f *balancer.Frontend) *balancer.Frontend {
			return drained(f, 1, balancer.Down, time.Time{})
		}, "edit 1 to 0, delete 1"},
		"bounded": {func(f *balancer.Frontend) *balancer.Frontend {
			return with(f, 2, func(b *balancer.Backend) { b.MaxConnections = 10 })
		}, "edit 2 to 1 at most 10"},
		"scheduler": {func(f *balancer.Frontend) *balancer.Frontend {
			g := *f
			g.Scheduler = balancer.Maglev
			return &g
		}, "scheduler mh"},
		"affinity": {func(f *balancer.Frontend) *balancer.Frontend {
			g := *f
			g.AffinityTimeout = 1500 * time.Millisecond
			return &g
		}, "scheduler wrr for 2s"},
		"guard alone": {func(f *balancer.Frontend) *balancer.Frontend {
			g := *f
			g.NoEndpoints, g.SNAT = balancer.DropClients, balancer.AlwaysSNAT
			return &g
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, newKernel(), t.TempDir())
			p.observe()
			var frontends []*balancer.Frontend
			for n := range all {
				frontends = append(frontends, web(balancer.Key{Addr: key(0).Addr, Port: balancer.PortRange(1 + n), Proto: balancer.TCP}, 1, 2, 3))
			}
			p.apply(frontends...)
			f := frontends[all/2]
			p.k.connect(t, f, 2, 1, 0)
			ops := p.sent(func() { p.apply(c.change(f)) })
			if got := describeOps(ops); got != c.want {
				t.Errorf("Apply sent messages %q, want %q", got, c.want)
			}
			if again := p.sent(func() { p.apply(c.change(f)) }); len(again) > 0 {
				t.Errorf("Apply without changes sent messages %q, want none", describeOps(again))
			}
		})
	}
}

// describeOps describes the ops that change endpoints of the service "web".
func describeOps(ops []ipvsnl.Op) string {
	var words []string
	for _, op := range ops {
		i := op.Destination.Addr.Addr().AsSlice()
		switch op.Verb {
		case ipvsnl.AddService, ipvsnl.EditService:
			w := "scheduler " + op.Service.Scheduler
			if op.Service.Timeout > 0 {
				w += " for " + op.Service.Timeout.String()
			}
			words = append(words, w)
		case ipvsnl.DeleteService:
			words = append(words, "delete all")
		case ipvsnl.AddDestination:
			words = append(words, fmt.Sprint("add ", i[len(i)-1]))
		case ipvsnl.EditDestination:
			w := fmt.Sprint("edit ", i[len(i)-1], " to ", op.Destination.Weight)
			if op.Destination.Upper > 0 {
				w += fmt.Sprint(" at most ", op.Destination.Upper)
			}
			words = append(words, w)
		case ipvsnl.DeleteDestination:
			words = append(words, fmt.Sprint("delete ", i[len(i)-1]))
		}
	}
	return strings.Join(words, ", ")
}

// TestAdoptionSendsNothing restarts vipd while frontends have draining endpoints, connection limits
// and affinity. The next process must not send messages that change the kernel's state.
func TestAdoptionSendsNothing(t *testing.T) {
	for _, crash := range []bool{false, true} {
		p := start(t, newKernel(), t.TempDir())
		p.observe()
		until := time.Now().Add(time.Hour)
		plain := web(key(0), 1, 2, 3)
		drains := drained(web(key(3), 1, 2), 2, balancer.Removed, until)
		bounded := with(web(key(6), 1, 2), 1, func(b *balancer.Backend) { b.MaxConnections = 5 })
		sticky := web(key(1), 1, 2)
		sticky.AffinityTimeout, sticky.Scheduler = time.Hour, balancer.SourceHash
		empty := web(key(2))
		p.apply(plain, web(key(3), 1, 2), bounded, sticky, empty)
		p.k.connect(t, drains, 2, 3, 0)
		p.apply(drains)
		before := p.k.text(t, every)
		p.k.omitted = map[balancer.Key]bool{drains.Key: true, sticky.Key: true}
		p.restart(crash)
		ops := p.sent(func() {
			if seen := p.observe(); !seen.ReapplyAll || len(seen.Digests) != 4 {
				t.Errorf("Observe in the next process = %+v, want 4 frontends and ReapplyAll", seen)
			}
			p.apply(plain, drains, bounded, sticky, empty)
			if reason, err := p.Intact(context.Background()); reason != "" || err != nil {
				t.Errorf("Intact = %q, %v; want no reason", reason, err)
			}
			seen := p.observe()
			for _, f := range []*balancer.Frontend{plain, drains, bounded, sticky, empty} {
				if seen.Digests[f.Key] != p.Digest(f) {
					t.Errorf("digest of %s = %v, want %v", f.Key, seen.Digests[f.Key], p.Digest(f))
				}
			}
		})
		if len(ops) > 0 {
			t.Errorf("next process sent messages %v, want none", ops)
		}
		if got := p.k.text(t, every); got != before {
			t.Errorf("kernel's state after the restart =\n%swant\n%s", got, before)
		}
	}
}

// TestForeign applies frontends, some of which have the addresses and ports of foreign virtual
// servers. The foreign virtual servers must remain. A frontend must fail until the foreign virtual
// server with its address and port is removed.
func TestForeign(t *testing.T) {
	k := newKernel()
	p := start(t, k, t.TempDir())
	p.observe()
	theirs := ipvsnl.Service{Key: key(0), Scheduler: "wrr"}
	beside := theirs
	beside.Key.Port = 81
	made := []ipvsnl.Op{
		{Verb: ipvsnl.AddService, Service: theirs}, {Verb: ipvsnl.AddService, Service: beside},
		{Verb: ipvsnl.AddDestination, Service: theirs, Destination: ipvsnl.Destination{Addr: address(key(0), 9), Forward: balancer.NATForward, Weight: 3}},
	}
	if errs := k.Do(context.Background(), made); errs != nil {
		t.Fatal(errs)
	}
	before := k.text(t, every)
	ours, other := web(key(0), 1, 2), web(key(1), 1, 2)
	for range 2 {
		err := p.Apply(context.Background(), changes(ours, other))
		each, ok := errors.AsType[dataplane.KeyErrors](err)
		if !ok || len(each) != 1 || each[ours.Key] == nil {
			t.Fatalf("Apply = %v, want an error only for %s", err, ours.Key)
		}
		for _, part := range []string{"10.2.0.9:8080", "ipvsadm -D -t 10.96.0.0:80", "wrr"} {
			if !strings.Contains(each[ours.Key].Error(), part) {
				t.Errorf("error = %q, want it to contain %s", each[ours.Key], part)
			}
		}
		if got := k.text(t, func(k balancer.Key) bool { return k != other.Key }); got != before {
			t.Errorf("foreign virtual servers before =\n%safterwards =\n%swant the same", before, got)
		}
		p.restart(true)
		p.observe()
	}
	if err := p.Apply(context.Background(), []dataplane.Change{{Key: ours.Key}}); err != nil {
		t.Errorf("removing a missing frontend: error = %v, want nil", err)
	}
	if errs := k.Do(context.Background(), []ipvsnl.Op{{Verb: ipvsnl.DeleteService, Service: theirs}}); errs != nil {
		t.Fatal(errs)
	}
	p.apply(ours, other)
	if reason, err := p.Intact(context.Background()); reason != "" || err != nil {
		t.Errorf("Intact = %q, %v; want no reason", reason, err)
	}
	if err := p.Close(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	if got, want := k.text(t, every), "-A -t 10.96.0.0:81 -s wrr\n"; got != want {
		t.Errorf("virtual servers =\n%swant\n%s", got, want)
	}
}

// TestNoLedgerNoServer makes the ledger unwritable. Apply must then create no virtual server.
func TestNoLedgerNoServer(t *testing.T) {
	p := start(t, newKernel(), "/proc/nowhere")
	p.observe()
	if err := p.Apply(context.Background(), changes(web(key(0), 1))); err == nil {
		t.Error("Apply without a ledger = nil, want an error")
	}
	if got := p.k.text(t, every); got != "" {
		t.Errorf("virtual servers without a ledger =\n%s\nwant none", got)
	}
}

// TestNothingIsKeptOfWhatIsGone starts with a ledger that names virtual servers that no longer
// exist. The process must not retain state about them.
func TestNothingIsKeptOfWhatIsGone(t *testing.T) {
	k, dir := newKernel(), t.TempDir()
	p := start(t, k, dir)
	p.observe()
	for n := range 50 {
		p.apply(web(key(n), 1))
	}
	p.restart(true)
	k.Flush()
	p.observe()
	if n := len(p.servers) + len(p.quiet) + len(p.ledger.entries); n != 0 {
		t.Errorf("entries in the ledger = %d, want 0", n)
	}
	p.apply(web(key(0), 1))
	if n := len(p.servers); n != 1 {
		t.Errorf("known virtual servers = %d, want 1", n)
	}
}

// TestDamageObserved changes virtual servers in several ways. Intact and Observe must report each
// change to one of vipd's virtual servers, and Apply must repair it. Foreign virtual servers must
// not be reported as changes.
func TestDamageObserved(t *testing.T) {
	f := with(web(key(0), 1, 2, 3), 1, func(b *balancer.Backend) { b.MaxConnections = 9 })
	f.Scheduler = balancer.SourceHash
	at := ipvsnl.Service{Key: f.Key}
	for name, c := range map[string]struct {
		op   ipvsnl.Op
		sure bool
	}{
		"service gone":        {ipvsnl.Op{Verb: ipvsnl.DeleteService, Service: at}, true},
		"scheduler":           {ipvsnl.Op{Verb: ipvsnl.EditService, Service: ipvsnl.Service{Key: f.Key, Scheduler: "rr"}}, true},
		"flags":               {ipvsnl.Op{Verb: ipvsnl.EditService, Service: ipvsnl.Service{Key: f.Key, Scheduler: "sh"}}, true},
		"destination gone":    {ipvsnl.Op{Verb: ipvsnl.DeleteDestination, Service: at, Destination: ipvsnl.Destination{Addr: address(f.Key, 2)}}, true},
		"weight":              {ipvsnl.Op{Verb: ipvsnl.EditDestination, Service: at, Destination: ipvsnl.Destination{Addr: address(f.Key, 2), Forward: balancer.NATForward, Weight: 5}}, true},
		"threshold":           {ipvsnl.Op{Verb: ipvsnl.EditDestination, Service: at, Destination: ipvsnl.Destination{Addr: address(f.Key, 1), Forward: balancer.NATForward, Weight: 1}}, true},
		"forward":             {ipvsnl.Op{Verb: ipvsnl.EditDestination, Service: at, Destination: ipvsnl.Destination{Addr: address(f.Key, 2), Forward: balancer.DRForward, Weight: 1}}, true},
		"destination added":   {ipvsnl.Op{Verb: ipvsnl.AddDestination, Service: at, Destination: ipvsnl.Destination{Addr: address(f.Key, 8), Forward: balancer.NATForward, Weight: 1}}, true},
		"somebody else comes": {ipvsnl.Op{Verb: ipvsnl.AddService, Service: ipvsnl.Service{Key: key(6), Scheduler: "rr"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, newKernel(), t.TempDir())
			p.observe()
			p.apply(f)
			before := p.k.text(t, func(k balancer.Key) bool { return k == f.Key })
			if errs := p.k.Do(context.Background(), []ipvsnl.Op{c.op}); errs != nil {
				t.Fatal(errs)
			}
			reason, err := p.Intact(context.Background())
			if err != nil || (reason != "") != c.sure {
				t.Errorf("Intact = %q, %v; want a reason only if a change is certain", reason, err)
			}
			if seen := p.observe(); (seen.Digests[f.Key] == p.Digest(f)) == c.sure {
				t.Errorf("Observe = %+v, want the digest of the frontend unchanged = %t", seen, !c.sure)
			}
			p.apply(f)
			if got := p.k.text(t, func(k balancer.Key) bool { return k == f.Key }); got != before {
				t.Errorf("kernel's state after the repair =\n%swant\n%s", got, before)
			}
			if reason, err := p.Intact(context.Background()); reason != "" || err != nil {
				t.Errorf("Intact after the repair = %q, %v; want no reason", reason, err)
			}
		})
	}
}

// TestDamageObservedAmongMany changes one of 1,500 virtual servers. The first comparison must
// report this change.
func TestDamageObservedAmongMany(t *testing.T) {
	p := start(t, newKernel(), t.TempDir())
	p.observe()
	var all []*balancer.Frontend
	for i := range 1500 {
		all = append(all, web(key(i), 1, 2))
	}
	p.apply(all...)
	for i := 0; i < len(all); i += 400 {
		f := all[i]
		op := ipvsnl.Op{Verb: ipvsnl.EditDestination, Service: ipvsnl.Service{Key: f.Key}, Destination: ipvsnl.Destination{Addr: address(f.Key, 2), Forward: balancer.NATForward, Weight: 5}}
		if errs := p.k.Do(t.Context(), []ipvsnl.Op{op}); errs != nil {
			t.Fatal(errs)
		}
		if reason, err := p.Intact(t.Context()); !strings.Contains(reason, "changed") || err != nil {
			t.Errorf("Intact = %q, %v; want a reason about the change", reason, err)
		}
		p.observe()
		p.apply(f)
		p.look.next = time.Time{} // ends the pause between comparisons
		if reason, err := p.Intact(t.Context()); reason != "" || err != nil {
			t.Errorf("Intact after the repair = %q, %v; want no reason", reason, err)
		}
		p.look.next = time.Time{}
	}
}

// TestClearingIsSeen removes all virtual servers of one family. Intact must report this
// immediately.
func TestClearingIsSeen(t *testing.T) {
	for _, n := range []int{0, 3} { // these keys have an IPv4 and an IPv6 address
		p := start(t, newKernel(), t.TempDir())
		p.observe()
		p.apply(web(key(n), 1))
		p.look.next = time.Now().Add(time.Hour)
		if reason, err := p.Intact(t.Context()); reason != "" || err != nil {
			t.Errorf("before %s was removed: Intact = %q, %v; want no reason", key(n), reason, err)
		}
		p.k.Flush()
		if reason, err := p.Intact(t.Context()); err != nil || !strings.Contains(reason, "missing") {
			t.Errorf("after %s was removed: Intact = %q, %v; want a reason", key(n), reason, err)
		}
	}
}

// TestUnloadingIsSeen unloads IPVS from the kernel. Intact must report this, and the next Apply
// must restore all virtual servers.
func TestUnloadingIsSeen(t *testing.T) {
	p := start(t, newKernel(), t.TempDir())
	p.observe()
	p.k.unloaded = true
	if reason, err := p.Intact(t.Context()); reason != "" || err == nil {
		t.Errorf("no virtual server wanted: Intact = %q, %v; want an error and no reason", reason, err)
	}
	p.observe()
	f := web(key(0), 1)
	p.apply(f)
	p.k.Flush()
	p.k.unloaded = true
	if reason, err := p.Intact(t.Context()); err != nil || !strings.Contains(reason, "not loaded") {
		t.Errorf("Intact = %q, %v; want IPVS not loaded", reason, err)
	}
	if seen := p.observe(); len(seen.Digests) > 0 {
		t.Errorf("Observe = %+v, want no frontends", seen)
	}
	p.apply(f)
	if reason, err := p.Intact(t.Context()); reason != "" || err != nil {
		t.Errorf("Intact after the repair = %q, %v; want no reason", reason, err)
	}
}

// TestApplyCorrectsBeliefs changes virtual servers as another program could. Even without a
// comparison of the kernel's state, Apply must result in the wanted state.
func TestApplyCorrectsBeliefs(t *testing.T) {
	f, g := web(key(0), 1, 2, 3), web(key(0), 2, 3, 4)
	at := ipvsnl.Service{Key: f.Key}
	to := func(i int) ipvsnl.Destination {
		return ipvsnl.Destination{Addr: address(f.Key, i), Forward: balancer.NATForward, Weight: 1}
	}
	for name, ops := range map[string][]ipvsnl.Op{
		"service gone":      {{Verb: ipvsnl.DeleteService, Service: at}},
		"one gone, one new": {{Verb: ipvsnl.DeleteDestination, Service: at, Destination: to(1)}, {Verb: ipvsnl.AddDestination, Service: at, Destination: to(4)}},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, newKernel(), t.TempDir())
			p.observe()
			p.apply(f)
			if errs := p.k.Do(context.Background(), ops); errs != nil {
				t.Fatal(errs)
			}
			p.apply(g)
			want := Render([]*balancer.Frontend{g})
			if got := p.k.text(t, every); got != want {
				t.Errorf("kernel's state =\n%s, want\n%s", got, want)
			}
			p.remove(g)
			if got := p.k.text(t, every); got != "" {
				t.Errorf("virtual servers after the removal =\n%s\nwant none", got)
			}
		})
	}
}

func TestCleanupRemovesWhatTheLedgerNames(t *testing.T) {
	k := newKernel()
	p := start(t, k, t.TempDir())
	p.observe()
	p.apply(web(key(0), 1), web(key(1), 1), web(key(3), 1))
	if errs := k.Do(context.Background(), []ipvsnl.Op{{Verb: ipvsnl.AddService, Service: ipvsnl.Service{Key: key(2), Scheduler: "rr"}}}); errs != nil {
		t.Fatal(errs)
	}
	for _, dry := range []bool{true, false} {
		l, err := openLedger(p.dir, "boot", "namespace")
		if err != nil {
			t.Fatal(err)
		}
		done, err := removeOwned(context.Background(), k, l, dry)
		want := []string{"delete virtual server 10.96.0.0:80/tcp", "delete virtual server 10.96.0.0:80/udp", "delete virtual server [fd00::]:80/tcp"}
		if err != nil || !slices.Equal(done, want) {
			t.Errorf("removeOwned, dry = %v: steps = %q, error = %v; want %q", dry, done, err, want)
		}
		if err := l.save(); err != nil {
			t.Fatal(err)
		}
		if left := len(l.entries); dry != (left == 3) {
			t.Errorf("removeOwned, dry = %v: entries left in the ledger = %d, want 3 only after a dry run", dry, left)
		}
	}
	if got, want := k.text(t, every), "-A --sctp-service 10.96.0.0:80 -s rr\n"; got != want {
		t.Errorf("virtual servers =\n%swant\n%s", got, want)
	}
}
