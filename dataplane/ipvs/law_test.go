package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipvsnl"
	"vipd/test/wait"
)

// history is a random sequence of events: batches of changes, lost answers, crashes, changes by
// other programs, new and closed connections, and the passage of time.
type history struct {
	*testing.T
	*rand.Rand
	p *process
	// others maps the keys of foreign virtual servers to their descriptions.
	others map[balancer.Key]string

	mu sync.Mutex // guards the fields below, which the dataplane's goroutines use
	// luck determines which answers are lost while lossy is true.
	luck  *rand.Rand
	lossy bool
	want  map[balancer.Key]*balancer.Frontend
}

const historyKeys, historyEndpoints = 14, 6

// historyKey returns the n-th key that histories use. The last keys have port ranges.
func historyKey(n int) balancer.Key {
	k := key(n)
	if n >= historyKeys-3 {
		k.Port = balancer.NewPortRange(8080, 8089) // endpoints have the same ports
	}
	return k
}

// TestHistories runs random histories with lost answers, crashes and changes by other programs.
// Each history must end in the same state as a single Apply of the wanted frontends. No connection
// may be cut before its deadline.
func TestHistories(t *testing.T) {
	for seed := range wait.Soak(10, 40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				h := &history{
					T: t, Rand: rand.New(rand.NewPCG(uint64(seed), 1)), luck: rand.New(rand.NewPCG(uint64(seed), 2)),
					want: map[balancer.Key]*balancer.Frontend{}, others: map[balancer.Key]string{},
				}
				k := newKernel()
				k.skip = func(balancer.Key) bool { h.mu.Lock(); defer h.mu.Unlock(); return h.luck.IntN(10) == 0 }
				k.lose, k.before = h.lose, func(op ipvsnl.Op) { h.mayCut(k, op) }
				h.p = start(t, k, dir)
				h.p.observe()
				for range 80 {
					h.step()
					synctest.Wait()
					h.othersAreWhole()
				}
				h.endDisturbances()
				h.mu.Lock()
				clear(h.want)
				h.mu.Unlock()
				if err := h.p.Close(context.Background(), false); err != nil {
					t.Error(err)
				}
				h.othersAreWhole()
				if got := k.text(t, h.ours); got != "" {
					t.Errorf("virtual servers after Close =\n%s\nwant none", got)
				}
			})
		})
	}
}

// lose makes random requests and answers get lost.
func (h *history) lose(ipvsnl.Op) (done, answered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.lossy || h.luck.IntN(20) > 0 {
		return true, true
	}
	return h.luck.IntN(2) == 0, false
}

// mayCut fails the test if an op would cut connections to a backend that may still have
// connections.
func (h *history) mayCut(kernel *kernel, op ipvsnl.Op) {
	k := op.Service.Key
	if k.Proto == balancer.UDP || op.Verb != ipvsnl.DeleteService && op.Verb != ipvsnl.DeleteDestination {
		return
	}
	states, err := kernel.Destinations(context.Background(), k)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range states {
		if op.Verb == ipvsnl.DeleteDestination && s.Addr != op.Destination.Addr || s.Active == 0 {
			continue
		}
		if b := backendOf(h.want[k], s.Addr); b != nil && !b.Expired(time.Now()) {
			h.Errorf("op %s cuts connections to %s, whose state is %s until %v", op, s.Addr, b.State, b.Until)
		}
	}
}

func (h *history) ours(k balancer.Key) bool { return h.others[k] == "" }

func (h *history) othersAreWhole() {
	h.Helper()
	for k, text := range h.others {
		if got := h.p.k.text(h, func(l balancer.Key) bool { return l == k }); got != text {
			h.Fatalf("foreign virtual server before =\n%safterwards =\n%swant the same", text, got)
		}
	}
}

func (h *history) step() {
	switch h.IntN(12) {
	case 0:
		h.mu.Lock()
		h.lossy = !h.lossy
		h.mu.Unlock()
	case 1:
		h.p.restart(h.IntN(2) == 0)
		h.p.observe()
		h.apply(h.all()) // apply the same changes again
	case 2:
		h.p.observe()
	case 3:
		h.meddle()
	case 4:
		h.foreign()
	case 5:
		time.Sleep(time.Duration(h.IntN(int(40 * time.Second))))
	case 6, 7:
		h.traffic()
	default:
		var batch []dataplane.Change
		for range 1 + h.IntN(6) {
			k := historyKey(h.IntN(historyKeys))
			if slices.ContainsFunc(batch, func(c dataplane.Change) bool { return c.Key == k }) {
				continue
			}
			c := dataplane.Change{Key: k, Old: h.want[k]}
			if h.IntN(2) == 0 {
				c.Old = nil
			}
			h.mu.Lock()
			if h.IntN(4) > 0 {
				c.New = h.next(k)
				h.want[k] = c.New
			} else {
				delete(h.want, k)
			}
			h.mu.Unlock()
			batch = append(batch, c)
		}
		h.apply(batch)
	}
}

func (h *history) apply(batch []dataplane.Change) {
	err := h.p.Apply(context.Background(), batch)
	each, ok := errors.AsType[dataplane.KeyErrors](err)
	if err != nil && !ok {
		h.Fatalf("Apply: %v", err)
	}
	for k, err := range each {
		if h.ours(k) && !errors.Is(err, ipvsnl.ErrNoAnswer) {
			h.Errorf("Apply: error for %s = %v, want nil", k, err)
		}
	}
}

// all returns changes that apply all wanted frontends and remove all other frontends.
func (h *history) all() []dataplane.Change {
	var batch []dataplane.Change
	for n := range historyKeys {
		batch = append(batch, dataplane.Change{Key: historyKey(n), New: h.want[historyKey(n)]})
	}
	return batch
}

// next returns a random new version of the frontend at k. Like the compiler, it makes removed
// endpoints drain until their timeout has passed.
func (h *history) next(k balancer.Key) *balancer.Frontend {
	was := h.want[k]
	f := web(k)
	f.Scheduler = balancer.Scheduler(h.pick(f.Scheduler.Values()...))
	f.Forward = balancer.Forward(h.pick(f.Forward.Values()...))
	if h.IntN(4) == 0 {
		f.AffinityTimeout = time.Duration(1 + h.IntN(int(time.Hour)))
	}
	for i := range historyEndpoints {
		old := backendOf(was, address(k, i))
		b := balancer.Backend{Addr: address(k, i), State: balancer.Active, Weight: 1 + h.IntN(5)}
		switch h.IntN(6) {
		case 0:
			b.State, b.Weight = balancer.BackendState(h.pick("standby", "remote", "zero-weight", "draining", "down")), 0
			if b.State == balancer.Draining && h.IntN(2) == 0 {
				b.Until = time.Now().Add(time.Duration(h.IntN(int(time.Minute))))
			}
		case 1, 2:
			b.MaxConnections = h.IntN(3)
		case 3, 4: // the backend is missing: if it existed, it was removed
			if k.Proto == balancer.UDP || old == nil || old.State == balancer.Removed && old.Expired(time.Now()) {
				continue
			}
			b = balancer.Backend{Addr: b.Addr, State: balancer.Removed, Until: time.Now().Add(f.DrainTimeout)}
			if !old.Until.IsZero() && old.Until.Before(b.Until) {
				b.Until = old.Until
			}
		}
		f.Backends = append(f.Backends, b)
	}
	return f
}

func (h *history) pick(of ...string) string { return of[h.IntN(len(of))] }

// meddle changes or deletes vipd's virtual servers, as another program could.
func (h *history) meddle() {
	k := historyKey(h.IntN(historyKeys))
	if m := h.p.k.marks[inet.Of(k.Addr)]; h.IntN(4) == 0 {
		m.lose()
	}
	if !h.ours(k) {
		return
	}
	d := ipvsnl.Destination{Addr: address(k, h.IntN(historyEndpoints)), Forward: balancer.NATForward, Weight: h.IntN(3)}
	verbs := []ipvsnl.Verb{ipvsnl.EditService, ipvsnl.DeleteService, ipvsnl.AddDestination, ipvsnl.EditDestination, ipvsnl.DeleteDestination}
	op := ipvsnl.Op{Verb: verbs[h.IntN(len(verbs))], Service: ipvsnl.Service{Key: k, Scheduler: "lblc"}, Destination: d}
	h.p.k.Fake.Do(context.Background(), []ipvsnl.Op{op}) // this may fail
}

// foreign creates or deletes a virtual server of another program.
func (h *history) foreign() {
	k := historyKey(h.IntN(2 * historyKeys))
	s := ipvsnl.Service{Key: k, Scheduler: "wrr"}
	if h.others[k] != "" {
		h.p.k.Fake.Do(context.Background(), []ipvsnl.Op{{Verb: ipvsnl.DeleteService, Service: s}})
		delete(h.others, k)
		return
	}
	h.p.observe() // otherwise the ledger might still name vipd's objects that were deleted there
	add := []ipvsnl.Op{
		{Verb: ipvsnl.AddService, Service: s},
		{Verb: ipvsnl.AddDestination, Service: s, Destination: ipvsnl.Destination{Addr: address(k, h.IntN(historyEndpoints)), Forward: balancer.NATForward, Weight: 1}},
	}
	if errs := h.p.k.Fake.Do(context.Background(), add[:1]); errs != nil {
		return // the virtual server already exists
	}
	h.p.k.Fake.Do(context.Background(), add[1:])
	h.others[k] = h.p.k.text(h, func(l balancer.Key) bool { return l == k })
}

// traffic adds connections to destinations and removes connections at random.
func (h *history) traffic() {
	for range 10 {
		k := historyKey(h.IntN(historyKeys))
		if !h.ours(k) {
			continue
		}
		n := uint32(h.IntN(3))
		_ = h.p.k.SetDestination(k, address(k, h.IntN(historyEndpoints)), func(s *ipvsnl.DestinationState) {
			switch {
			case n < s.Active || s.Weight > 0:
				s.Active, s.Inactive = n, uint32(h.IntN(2))
				s.Connections += uint64(n)
			default:
				s.Active = 0
			}
		})
	}
}

// endDisturbances ends all disturbances, and compares the kernel's state with the wanted state.
func (h *history) endDisturbances() {
	h.Helper()
	h.mu.Lock()
	h.lossy = false
	h.mu.Unlock()
	h.p.observe()
	h.apply(h.all())
	h.check()
	if ops := h.p.sent(func() { h.apply(h.wanted()) }); len(ops) > 0 {
		h.Errorf("Apply without changes sent messages %v, want none", ops)
	}
	seen := h.p.observe()
	for k, f := range h.want {
		if h.ours(k) && seen.Digests[k] != h.p.Digest(f) {
			h.Errorf("digest of %s = %v, want %v", k, seen.Digests[k], h.p.Digest(f))
		}
		delete(seen.Digests, k)
	}
	if len(seen.Digests) > 0 {
		h.Errorf("Observe: digests of unwanted frontends = %v, want none", seen.Digests)
	}
	for range 2 * historyKeys {
		if reason, err := h.p.Intact(context.Background()); reason != "" || err != nil {
			h.Fatalf("Intact = %q, %v; want no reason", reason, err)
		}
	}
	h.p.restart(h.IntN(2) == 0)
	if ops := h.p.sent(func() { h.p.observe(); h.apply(h.wanted()) }); len(ops) > 0 {
		h.Errorf("next process sent messages %v, want none", ops)
	}
	for k := range h.others {
		h.p.k.Fake.Do(context.Background(), []ipvsnl.Op{{Verb: ipvsnl.DeleteService, Service: ipvsnl.Service{Key: k}}})
		delete(h.others, k)
	}
	h.apply(h.all())
	time.Sleep(2 * time.Minute) // wait until all drains have ended
	synctest.Wait()
	h.check()
}

// wanted returns changes that apply all wanted frontends, except those whose keys belong to foreign
// virtual servers.
func (h *history) wanted() []dataplane.Change {
	return slices.DeleteFunc(h.all(), func(c dataplane.Change) bool { return c.New == nil || !h.ours(c.Key) })
}

func (h *history) check() {
	h.Helper()
	for n := range historyKeys {
		k := historyKey(n)
		if h.ours(k) {
			h.checkKey(k, h.want[k])
		}
	}
	for family, m := range h.p.k.marks {
		want := map[balancer.Key]uint32{}
		for k, f := range h.want {
			if k.Port.IsRange() && inet.Of(k.Addr) == family && h.ours(k) && h.p.servers[k].exists && f != nil {
				want[k] = ipvsnl.Mark(k)
			}
		}
		if !maps.Equal(m.marks, want) {
			h.Errorf("marks of %s = %v, want %v", family, m.marks, want)
		}
	}
}

func (h *history) checkKey(k balancer.Key, f *balancer.Frontend) {
	h.Helper()
	ctx := context.Background()
	v, err := h.p.k.Service(ctx, k)
	if err != nil {
		if f != nil && f.Serves() {
			h.Errorf("virtual server at %s: %v, want %+v", k, err, f)
		}
		return
	}
	states, _ := h.p.k.Destinations(ctx, k)
	active := map[string]bool{}
	quiet := false
	for _, s := range states {
		b := backendOf(f, s.Addr)
		switch {
		case s.Weight > 0:
			active[s.Addr.String()] = true
			if b == nil || b.State != balancer.Active || s.Forward != f.Forward || int(s.Upper) != b.MaxConnections || s.Lower != s.Upper {
				h.Errorf("%s: destination = %+v, want a destination for backend %+v", k, s, b)
			} else if f.Scheduler != balancer.SourceHash && s.Weight != b.Weight {
				h.Errorf("%s: weight of destination %s = %d, want %d", k, s.Addr, s.Weight, b.Weight)
			}
		case s.Active+s.Inactive == 0, b != nil && b.Expired(time.Now()), k.Proto == balancer.UDP && b == nil:
			h.Errorf("%s: unneeded destination = %+v, want none for backend %+v", k, s, b)
		default:
			quiet = true
		}
	}
	if f == nil {
		return
	}
	for _, b := range f.Backends {
		if (b.State == balancer.Active) != active[b.Addr.String()] {
			h.Errorf("%s, backend %+v: destination with a weight above 0 exists = %v, want true only for an active backend", k, b, active[b.Addr.String()])
		}
	}
	want := render(f)
	if quiet && f.Scheduler == balancer.DestinationHash {
		want.Scheduler = "fo"
	}
	if f.Serves() && v.Service != want {
		h.Errorf("virtual server = %+v, want %+v", v.Service, want)
	}
}
