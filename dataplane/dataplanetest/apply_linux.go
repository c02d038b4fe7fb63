package dataplanetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/wait"
)

// bare is a rig for cases that call the dataplane directly, even in ways in which an engine never
// does.
type bare struct{ *rig }

func (b *bare) compile(services ...*balancer.Service) balancer.Desired {
	var in balancer.Inputs
	for _, s := range services {
		in.Services = in.Services.Set(s.Name, s)
	}
	return new(balancer.Compiler).Next(balancer.Env{Node: "node", Local: b.w.own, NodePortAddresses: b.w.own, Capabilities: b.caps}, in, time.Now())
}

// carry prepares the host for the state want, and then applies the batches one after another. After
// the last batch, the applied state must be want.
func (b *bare) carry(want balancer.Desired, batches ...[]dataplane.Change) {
	b.Helper()
	b.host.Resync(true)
	if err := b.host.Prepare(b.Context(), want); err != nil {
		b.Fatalf("preparing the host: %v", err)
	}
	for _, batch := range batches {
		if err := b.dp.Apply(b.Context(), batch); err != nil {
			b.Fatalf("applying %d changes: %v", len(batch), err)
		}
	}
	if err := b.host.Finish(b.Context(), want.Frontends); err != nil {
		b.Fatalf("finishing the host: %v", err)
	}
}

func adds(want balancer.Desired) []dataplane.Change {
	var batch []dataplane.Change
	for k, f := range want.Frontends.All() {
		batch = append(batch, dataplane.Change{Key: k, New: f})
	}
	return batch
}

// wantState checks that the dataplane has exactly the frontends in want, and reports no damage.
func (b *bare) wantState(when string, want balancer.Desired) {
	b.Helper()
	seen, err := b.dp.Observe(b.Context())
	if err != nil {
		b.Fatalf("observing %s: %v", when, err)
	}
	digests := map[balancer.Key]dataplane.Digest{}
	for k, f := range want.Frontends.All() {
		digests[k] = b.dp.Digest(f)
	}
	if seen.ReapplyAll && b.s.VirtualServers { // IPVS does not store digests, and creates no virtual server for a frontend without active backends
		for k := range digests {
			if d, there := seen.Digests[k]; there && d == 0 {
				seen.Digests[k] = digests[k]
			} else if !there {
				delete(digests, k)
			}
		}
	}
	if !maps.Equal(seen.Digests, digests) {
		b.Errorf("%s: Observe = %v, want %v", when, seen.Digests, digests)
	}
	if len(seen.Damage) > 0 {
		b.Errorf("%s: Observe reports the damage %q, want none", when, seen.Damage)
	}
	if reason, err := b.dp.Intact(b.Context()); reason != "" || err != nil {
		b.Errorf("%s: Intact = %q, %v; want no reason and no error", when, reason, err)
	}
}

// testIdempotent applies the same changes twice, and removes frontends that do not exist. An open
// connection must survive, and Observe must return exactly the desired frontends.
func testIdempotent(b *bare) {
	r := b.rig
	want := b.compile(newService("web", r.w.vip, endpoints(r.w.servers...)...), newService("empty", vipN(40)))
	b.wantState("before anything", balancer.Desired{})
	b.carry(want, adds(want))
	b.wantState("after Apply", want)
	key := keyOf(r.w.vip[0], vipPort, balancer.TCP)
	c, _ := r.mustOpen(r.w.client, netip.Addr{}, key)
	hinted := adds(want)
	for i := range hinted {
		hinted[i].Old = hinted[i].New
	}
	b.carry(want, adds(want), hinted)
	b.wantState("after the same Apply again", want)
	if err := alive(c, atOnce); err != nil {
		r.Errorf("error of an open connection after a repeated Apply = %v, want nil", err)
	}
	absent := dataplane.Change{Key: keyOf(vipN(41)[0], vipPort, balancer.TCP)}
	b.carry(want, []dataplane.Change{absent})
	b.wantState("after removing what is absent", want)
	r.each(func(r *rig, key balancer.Key) { r.mustAsk(r.w.client, key) })
	_ = c.Close() // closed before its address is removed
	removals := adds(want)
	for i := range removals {
		removals[i].Old, removals[i].New = removals[i].New, nil
	}
	b.carry(balancer.Desired{}, removals, removals)
	b.wantState("after removing everything, twice", balancer.Desired{})
}

// testOrder applies random sequences of changes in random batches. Some changes have the hint Old.
// Each sequence must result in exactly the desired state.
func testOrder(b *bare) {
	r := b.rig
	random, h := rand.New(rand.NewPCG(1, 2)), newHistory(1, r.w.servers, 50, 6)
	h.ranges = r.caps.MaxPorts > 0
	want := b.compile(h.wanted()...)
	for round := range 3 {
		done := map[balancer.Key]*balancer.Frontend{}
		var batches [][]dataplane.Change
		for range 2 {
			for range 6 {
				h.next()
			}
			batches = append(batches, shuffled(random, done, adds(b.compile(h.wanted()...)))...)
		}
		batches = append(batches, shuffled(random, done, adds(want))...)
		b.carry(want, batches...)
		b.wantState(fmt.Sprintf("after history %d", round), want)
		for key := range want.Frontends.Keys() {
			r.mustAsk(r.w.client, key)
		}
		if round%2 == 0 { // start the next sequence without frontends
			for _, batch := range batches {
				for i := range batch {
					batch[i].Old, batch[i].New = nil, nil
				}
			}
			b.carry(balancer.Desired{}, batches...)
			b.wantState("after removing everything", balancer.Desired{})
		}
	}
}

// shuffled returns the changes that lead from the state done to the frontends in adds, in random
// order and in random batches. It updates done accordingly.
func shuffled(random *rand.Rand, done map[balancer.Key]*balancer.Frontend, adds []dataplane.Change) [][]dataplane.Change {
	wanted := map[balancer.Key]bool{}
	for _, c := range adds {
		wanted[c.Key] = true
	}
	changes := adds
	for _, k := range slices.SortedFunc(maps.Keys(done), balancer.Key.Compare) {
		if !wanted[k] {
			changes = append(changes, dataplane.Change{Key: k})
		}
	}
	random.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	var batches [][]dataplane.Change
	for i := range changes {
		c := &changes[i]
		if random.IntN(2) == 0 {
			c.Old = done[c.Key]
		}
		if done[c.Key] = c.New; c.New == nil {
			delete(done, c.Key)
		}
		if len(batches) == 0 || random.IntN(8) == 0 {
			batches = append(batches, nil)
		}
		batches[len(batches)-1] = append(batches[len(batches)-1], *c)
	}
	return batches
}

// testClose closes a dataplane with keep = true and with keep = false. If keep is true, the
// dataplane's kernel objects must continue to serve clients, and the next dataplane must adopt them
// without losing a connection. If keep is false, no object may remain.
func testClose(b *bare) {
	r := b.rig
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	web.Scheduler = balancer.RoundRobin
	want := b.compile(web, newService("empty", vipN(40)))
	asked := func() {
		r.each(func(r *rig, key balancer.Key) {
			checkMeets(r, r.w.client, key, "s1", "s2", "s3")
			r.mustAsk(r.w.host, key)
			r.refused(r.w.client, keyOf(vipN(40).inFamilyOf(key.Addr), vipPort, key.Proto))
		})
	}
	b.carry(want, adds(want))
	asked()
	var pulses []*pulse
	if r.s.Keeps {
		pulses = startPulses(r, r.w.vip)
	}
	replaceDataplane(r, true)
	if r.s.Keeps {
		asked()
		b.wantState("after closing and keeping", want)
	}
	b.carry(want, adds(want))
	b.wantState("after the next dataplane's Apply", want)
	asked()
	checkUndisturbed(r, pulses, "closing and taking over")
	next := b.compile(edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[0]) }))
	b.carry(next, adds(next), removals(want, next))
	b.wantState("after a change by the next dataplane", next)
	r.each(func(r *rig, key balancer.Key) { checkMeets(r, r.w.client, key, "s1") })
	b.closesCounted(keyOf(r.w.vip[0], vipPort, balancer.TCP))
	b.dp = r.s.New(r.T)
	b.wantState("after closing and not keeping", balancer.Desired{})
	r.each(func(r *rig, key balancer.Key) {
		if a, err := r.askFrom(r.w.client, netip.Addr{}, key, silence); err == nil {
			r.Errorf("%s: %s answered through a closed dataplane, want no answer", key, a.Server)
		}
	})
}

func removals(before, after balancer.Desired) []dataplane.Change {
	var batch []dataplane.Change
	for k := range before.Frontends.Keys() {
		if !after.Frontends.Has(k) {
			batch = append(batch, dataplane.Change{Key: k})
		}
	}
	return batch
}

// closesCounted closes the dataplane while clients send requests continuously. The dataplane's
// connection counters must include each answered request.
func (b *bare) closesCounted(key balancer.Key) {
	r, answered := b.rig, atomic.Uint64{}
	before := counted(b.dp, key.Proto)
	ctx, closed := context.WithCancel(r.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if _, err := r.askFrom(r.w.client, netip.Addr{}, key, silence); err == nil {
					answered.Add(1)
				}
			}
		})
	}
	wait.For(r, 0, "the clients' first answers", func() bool { return answered.Load() > 20 })
	r.close(b.dp)
	closed()
	clients.Wait()
	if got, want := counted(b.dp, key.Proto)-before, answered.Load(); got < want && !r.s.VirtualServers { // IPVS updates its counters only every two seconds
		r.Errorf("counted connections = %d at %s, want at least %d, the number of answered requests", got, key, want)
	}
}
