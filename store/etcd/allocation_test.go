package etcd_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestParallelAllocation applies a hundred services with ten concurrent writers. Each service must
// get a different address, even if the pool has only a hundred addresses.
func TestParallelAllocation(t *testing.T) {
	t.Parallel()
	const n = 100
	c := etcdkit.Start(t, etcdkit.Options{})
	for i, networks := range [][]string{
		{"10.96.0.0/26", "10.97.0.0/27", "10.98.0.0/29", "10.99.0.0/31"}, // these networks have 62 + 30 + 6 + 2 usable addresses
		{"fd00:96::/64"},
	} {
		p := &place{t: t, client: c.Client(), config: configAt(c, i)}
		shared := newWriter(t, p.config)
		setPool(t, shared, "default", networks...)
		var running sync.WaitGroup
		services := make(chan int)
		for writer := range 10 { // half of the writers share a client
			w := shared
			if writer%2 == 0 {
				w = newWriter(t, p.config)
			}
			running.Go(func() {
				for i := range services {
					if _, err := w.Apply(t.Context(), definitions.Change{Name: balancer.Name(fmt.Sprint("s", i)), Fields: auto("")}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range n {
			services <- i
		}
		close(services)
		running.Wait()
		by := map[string]bool{}
		for _, name := range p.holders() {
			by[name] = true
		}
		if len(by) != n || len(p.holders()) != n {
			t.Errorf("allocated addresses = %d, services that hold an address = %d, want %d of each", len(p.holders()), len(by), n)
		}
		s, err := shared.Read(t.Context(), nil)
		if err != nil || s.Services.Len() != n || len(s.Problems) > 0 {
			t.Fatalf("services = %d, problems = %v, error = %v, want %d services", s.Services.Len(), s.Problems, err, n)
		}
		for name, service := range s.Services.All() {
			if len(service.Allocated) != 1 || p.holders()[service.Allocated[0].String()] != string(name) {
				t.Errorf("allocated addresses of service %s = %v, want the address that it holds in etcd", name, service.Allocated)
			}
			break
		}
		pools, err := shared.Pools(t.Context())
		if err != nil || len(pools) != 1 || pools[0].Held != n || pools[0].Free != pools[0].Size-n {
			t.Errorf("pools = %+v, %v, want %d held addresses", pools, err, n)
		}
		if _, err = shared.Apply(t.Context(), definitions.Change{Name: "more", Fields: auto("")}); i == 0 {
			expectError(t, err, `pool default is exhausted: services hold or name all 100 addresses of 10.96.0.0/26, 10.97.0.0/27, 10.98.0.0/29, 10.99.0.0/31`)
		} else if err != nil {
			t.Error(err)
		}
	}
}

// TestAllocation changes a service that has an address from a pool. The service must keep the
// address as long as its definition requests it.
func TestAllocation(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	_, err := w.Apply(t.Context(), definitions.Change{Name: "web", Fields: auto("")})
	expectError(t, err, `there is no pool default: create it with "vipctl pool set default CIDR...`)
	setPool(t, w, "default", "10.96.0.0/28")
	setPool(t, w, "blue", "10.96.0.0/29", "fd00:96::/64")
	_, err = w.Apply(t.Context(), definitions.Change{Name: "web", Fields: auto("", "blue")})
	expectError(t, err, `pools "blue" and "default" overlap`)
	setPool(t, w, "blue", "10.96.1.8/29", "fd00:96::/64")
	r := apply(t, w, definitions.Change{Name: "web", Fields: auto("")})
	first := p.vips("web")
	if s := f.reaches(r.Revision).Services.At("web"); len(first) != 1 || s == nil || len(s.Allocated) != 1 || s.Allocated[0].String() != first[0] || s.Origin.Revision != r.Revision {
		t.Fatalf("addresses of web = %q, want one address, as in the snapshot %+v", first, s)
	}
	if again := apply(t, newWriter(t, p.config), definitions.Change{Name: "web", Fields: auto(""), Base: definitions.Any}); again != (client.Result{Revision: r.Revision}) {
		t.Errorf("result of the repeated Apply = %+v, want no change at revision %d", again, r.Revision)
	}
	changed := auto("", "blue")
	changed["scheduler"] = "lc"
	r = apply(t, w, definitions.Change{Name: "web", Fields: changed, Base: definitions.Any})
	second := p.vips("web")
	if len(second) != 2 || !slices.Contains(second, first[0]) {
		t.Errorf("addresses after a second request = %q, want two, including %q", second, first)
	}
	if s := f.reaches(r.Revision).Services.At("web"); len(s.Allocated) != 2 || s.Allocated[0].String() != first[0] {
		t.Errorf("allocated addresses in the snapshot = %v, want two, with %s first", s.Allocated, first[0])
	}
	// If a definition was written without vipctl, the service must use the addresses that it
	// already has. Applying the definition must allocate the missing addresses.
	p.put("/services/web", `{"vips":["auto","auto","auto:blue"],"ports":[{"port":80}]}`)
	s := f.wait("the text", func(s store.Snapshot) bool { return len(s.Services.At("web").Pools) == 3 }).Services.At("web")
	if len(s.Allocated) != 2 {
		t.Errorf("allocated addresses in the snapshot before Apply = %v, want two", s.Allocated)
	}
	r = apply(t, w, definitions.Change{Name: "web", Fields: auto("", "", "blue"), Base: definitions.Any})
	if s := f.reaches(r.Revision).Services.At("web"); len(s.Allocated) != 3 {
		t.Errorf("allocated addresses in the snapshot after Apply = %v, want three", s.Allocated)
	}
}

// TestAllocationEnds reduces the requests of a service, and names its allocated address in its
// definition. Addresses that a service's definition names must not be allocated. Addresses that are
// no longer requested must be released.
func TestAllocationEnds(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	setPool(t, w, "default", "10.96.0.0/28")
	setPool(t, w, "blue", "fd00:96::/64")
	r := apply(t, w, definitions.Change{Name: "web", Fields: auto("")})
	first := p.vips("web")
	r = apply(t, w, definitions.Change{Name: "web", Fields: auto("", "blue", ""), Base: r.Revision})
	// An address that another service's definition names must not be allocated.
	for a := range 16 {
		apply(t, w, definitions.Change{Name: balancer.Name(fmt.Sprint("named", a)), Fields: map[string]any{
			"vips": []any{fmt.Sprint("10.96.0.", a)}, "ports": []any{map[string]any{"port": int64(80)}},
		}})
	}
	_, err := newWriter(t, p.config).Apply(t.Context(), definitions.Change{Name: "late", Fields: auto("")})
	expectError(t, err, `pool default is exhausted`)
	// With fewer requests, the service must keep its oldest address.
	apply(t, w, definitions.Change{Name: "web", Fields: auto(""), Base: definitions.Any})
	if got := p.vips("web"); !slices.Equal(got, first) {
		t.Errorf("addresses with one request left = %q, want %q", got, first)
	}
	// An address that the service's own definition now names must no longer be allocated.
	pinned := auto("blue")
	pinned["vips"] = append(pinned["vips"].([]any), first[0])
	r = apply(t, w, definitions.Change{Name: "web", Fields: pinned, Base: definitions.Any})
	if s := f.reaches(r.Revision).Services.At("web"); len(s.Allocated) != 1 || len(s.VIPs) != 1 || s.Allocated[0].String() == first[0] {
		t.Errorf("snapshot: defined VIPs = %v, allocated addresses = %v, want one of each", s.VIPs, s.Allocated)
	}
	r = apply(t, w, definitions.Change{Name: "web", Base: definitions.Any})
	if s := f.reaches(r.Revision); s.Services.Has("web") || len(s.Problems) > 0 || len(p.vips("web")) > 0 {
		t.Errorf("after the removal of web: problems = %v, held addresses = %q, want none", s.Problems, p.vips("web"))
	}
}

// TestAllocationHistories makes several writers apply services, remove services and set pools at
// random. No address may have two holders. Each service must get as many addresses as it requests,
// and must keep its old addresses if possible.
func TestAllocationHistories(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	for seed := range uint64(wait.Soak(1, 4)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 11))
			p := &place{t: t, client: c.Client(), config: configAt(c, int(seed))}
			h := &allocations{Rand: r, place: p, asks: map[string][]string{}, pools: map[string][]netip.Prefix{}, had: map[string]string{}}
			for range 3 {
				h.writers = append(h.writers, newWriter(t, p.config))
			}
			f := follow(t, newSource(t, watch.Options{Config: p.config}))
			for range 120 {
				h.step()
			}
			h.follows(f)
		})
	}
}

// allocations is a model of the services and pools in etcd.
type allocations struct {
	*rand.Rand
	*place
	writers []*etcd.Store
	asks    map[string][]string // the pools that each service requests
	pools   map[string][]netip.Prefix
	had     map[string]string
	last    int64
}

func (h *allocations) writer() *etcd.Store { return h.writers[h.IntN(len(h.writers))] }

func (h *allocations) step() {
	h.t.Helper()
	name := fmt.Sprint("s", h.IntN(6))
	switch h.IntN(5) {
	case 0:
		h.setPool([]string{"default", "blue"}[h.IntN(2)])
	case 1:
		h.last = max(h.last, apply(h.t, h.writer(), definitions.Change{Name: balancer.Name(name), Base: definitions.Any}).Revision)
		delete(h.asks, name)
	default:
		var pools []string
		for range 1 + h.IntN(2) {
			pools = append(pools, []string{"default", "blue"}[h.IntN(2)])
		}
		fields := auto(pools...)
		fields["ports"].([]any)[0].(map[string]any)["port"] = int64(1 + h.IntN(100))
		result, err := h.writer().Apply(h.t.Context(), definitions.Change{Name: balancer.Name(name), Fields: fields, Base: definitions.Any})
		if err != nil && !strings.Contains(err.Error(), "is exhausted") && !strings.Contains(err.Error(), "there is no pool") && !strings.Contains(err.Error(), "overlap") {
			h.t.Fatal(err)
		}
		if err == nil {
			h.asks[name], h.last = pools, max(h.last, result.Revision)
		}
	}
	h.check()
}

// setPool sets a pool to random networks, which may overlap the other pool's networks. If SetPool
// refuses, it must name an address that a service would lose.
func (h *allocations) setPool(name string) {
	h.t.Helper()
	all := cidrs("10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "fd00::/126")
	h.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	next := all[:h.IntN(len(all))]
	if len(next) == 0 {
		next = nil
	}
	_, err := h.writer().SetPool(h.t.Context(), name, next)
	lost := ""
	for a, by := range h.had {
		addr := netip.MustParseAddr(a)
		in := func(p netip.Prefix) bool { return p.Contains(addr) }
		if slices.Contains(h.asks[by], name) && slices.ContainsFunc(h.pools[name], in) && !slices.ContainsFunc(next, in) {
			lost = a + " (service " + by + ")"
		}
	}
	switch {
	case lost != "":
		expectError(h.t, err, "the pool would lose addresses that services hold", lost)
	case err != nil:
		h.t.Errorf("SetPool(%s) from %v to %v = %v, want nil, or an error that names an address that a service would lose", name, h.pools[name], next, err)
	default:
		h.pools[name] = next
	}
}

// check checks that the addresses in etcd agree with the model.
func (h *allocations) check() {
	h.t.Helper()
	now := h.holders()
	count := map[string]int{}
	for a, by := range now {
		addr := netip.MustParseAddr(a)
		in := func(p netip.Prefix) bool { return p.Contains(addr) }
		hasAddress := func(pool string) bool { return slices.ContainsFunc(h.pools[pool], in) }
		if !slices.ContainsFunc(h.asks[by], hasAddress) {
			h.t.Errorf("service %s holds %s, but requests %v of pools %v, want a request for the address", by, a, h.asks[by], h.pools)
		}
		count[by]++
	}
	for name, asks := range h.asks {
		if count[name] != len(asks) {
			h.t.Errorf("service %s requests %v and holds %d addresses, want the requested number", name, asks, count[name])
		}
	}
	for a, by := range h.had {
		if now[a] != by && now[a] != "" {
			h.t.Errorf("holder of %s = %s, then %s, want it released first", a, by, now[a])
		}
	}
	h.had = now
}

// follows compares the last snapshot of f and a fresh read with etcd.
func (h *allocations) follows(f *follower) {
	h.t.Helper()
	s := f.reaches(h.last)
	followed := map[string]string{}
	for name, service := range s.Services.All() {
		for _, a := range service.Allocated {
			followed[a.String()] = string(name)
		}
	}
	if !maps.Equal(followed, h.had) || len(s.Problems) > 0 {
		h.t.Errorf("allocated addresses in the snapshot = %v, want %v; problems = %v", followed, h.had, s.Problems)
	}
	read, err := h.writer().Read(h.t.Context(), nil)
	if err := errors.Join(err, agree(read, s)); err != nil {
		h.t.Errorf("the followed state differs from a fresh read: %v", err)
	}
}
