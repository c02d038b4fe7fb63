package etcd_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
)

// auto returns the fields of a service that requests an address from each of the pools. The pool ""
// is the default pool.
func auto(pools ...string) map[string]any {
	var vips []any
	for _, p := range pools {
		vips = append(vips, strings.TrimSuffix("auto:"+p, ":"))
	}
	return map[string]any{"vips": vips, "ports": []any{map[string]any{"port": int64(80)}}}
}

func cidrs(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func setPool(t *testing.T, w *etcd.Store, name string, networks ...string) {
	t.Helper()
	if _, err := w.SetPool(t.Context(), name, cidrs(networks...)); err != nil {
		t.Fatal(err)
	}
}

// holders maps each allocated address in etcd to the service that holds it.
func (p *place) holders() map[string]string {
	p.t.Helper()
	out := map[string]string{}
	p.try("list addresses", func(ctx context.Context) error {
		answer, err := p.client.Get(ctx, p.config.Prefix+"/vips/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range answer.Kvs {
			out[strings.TrimPrefix(string(kv.Key), p.config.Prefix+"/vips/")] = string(kv.Value)
		}
		return nil
	})
	return out
}

func expectError(t *testing.T, err error, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want one that contains %q", err, want)
		}
	}
}

// vips returns the sorted addresses that a service holds.
func (p *place) vips(name string) (of []string) {
	p.t.Helper()
	for a, by := range p.holders() {
		if by == name {
			of = append(of, a)
		}
	}
	slices.Sort(of)
	return of
}

// TestPoolRace removes a network from a pool while writers allocate the pool's addresses.
// Afterwards, all held addresses must be in the pool.
func TestPoolRace(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	for i := range 20 {
		setPool(t, w, "default", "10.96.0.0/24", "10.97.0.0/24")
		var running sync.WaitGroup
		for j := range 3 {
			running.Go(func() {
				_, err := newWriter(t, p.config).Apply(t.Context(), definitions.Change{Name: balancer.Name(fmt.Sprintf("s%d-%d", i, j)), Fields: auto("")})
				if err != nil {
					t.Error(err)
				}
			})
		}
		_, _ = newWriter(t, p.config).SetPool(t.Context(), "default", cidrs("10.96.0.0/24")) // SetPool may refuse the change
		running.Wait()
		pools, err := w.Pools(t.Context())
		if err != nil || pools[0].Held != uint64(len(p.holders())) {
			t.Fatalf("held addresses in etcd = %d, pools = %+v, %v, want the pool to count as many", len(p.holders()), pools, err)
		}
		for name := range p.holders() {
			p.remove("/vips/" + name)
		}
	}
}

func TestSetPoolRefuses(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	for want, networks := range map[string][]netip.Prefix{
		"at least one network":         {},
		"did you mean 10.96.0.0/24":    cidrs("10.96.0.1/24"),
		"10.0.0.0/8 and 10.96.0.0/24 ": cidrs("10.0.0.0/8", "10.96.0.0/24"),
		"multicast":                    cidrs("224.0.0.0/24"),
		"multicast addr":               cidrs("::/0"),
		"too many":                     manyNetworks(),
	} {
		_, err := w.SetPool(t.Context(), "default", networks)
		expectError(t, err, want)
	}
	_, err := w.SetPool(t.Context(), "No", cidrs("10.0.0.0/8"))
	expectError(t, err, "is not a valid pool name")
	for _, hostile := range []string{"", "No", "a/b", "\xff", "default/"} {
		p.put("/pools/"+hostile, `{"cidrs":["10.96.0.0/24"]}`)
	}
	for text, want := range map[string]string{
		"": "is empty",
		`{"cidrs":["10.96.0.0/24","10.96.0.0/25"]}`:       "overlap",
		`{"cidrs":["10.96.0.0"]}`:                         "cidrs[0]: \"10.96.0.0\" lacks a prefix length",
		`{"cidrs":[]}`:                                    "at least one network",
		`{"cidrs":["ff00::/8"]}`:                          "multicast",
		`{"cidrs":"` + strings.Repeat("x", 17<<10) + `"}`: "at most 16384 are allowed",
	} {
		p.put("/pools/default", text)
		_, err := w.Apply(t.Context(), definitions.Change{Name: "web", Fields: auto("")})
		expectError(t, err, `pool default can't be used`, want)
		pools, err := w.Pools(t.Context())
		if err != nil || len(pools) != 1 || !strings.Contains(pools[0].Problem, want) || pools[0].Free != 0 {
			t.Errorf("pools = %+v, %v, want one with the problem %s", pools, err, want)
		}
	}
	p.put("/pools/default", `{"cidrs":["10.96.0.0/24"],"colour":"red"}`)
	apply(t, w, definitions.Change{Name: "web", Fields: auto("")})
	if got := p.holders(); len(got) != 1 {
		t.Errorf("held addresses = %v, want one address", got)
	}
	many := make([]string, schema.MaxAllocated+1)
	_, err = w.Apply(t.Context(), definitions.Change{Name: "wide", Fields: auto(many...)})
	expectError(t, err, "requests 33 addresses from pools; at most 32 are allowed")
	apply(t, w, definitions.Change{Name: "wide", Fields: auto(many[1:]...)})
	apply(t, w, definitions.Change{Name: "wide", Base: definitions.Any})
}

func manyNetworks() (out []netip.Prefix) {
	for i := range 2000 {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	return out
}

// TestOrphanedAddresses writes allocated addresses for a service that does not exist, or that
// requests fewer addresses. A problem must report the addresses, and the command that it recommends
// must free them.
func TestOrphanedAddresses(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	setPool(t, w, "default", "10.96.0.0/24")
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	for i := range 50 {
		p.put(fmt.Sprint("/vips/10.96.0.", i), "web")
	}
	told := func(want string) {
		t.Helper()
		f.wait(want, func(s store.Snapshot) bool {
			return len(s.Problems) == 1 && s.Problems[0].Severity == balancer.SeverityWarning && s.Problems[0].Service == "web" && strings.Contains(s.Problems[0].Text, want)
		})
	}
	told(`does not exist: free it with "vipctl delete service web"`)
	p.put("/services/web", `{"vips":["auto"],"ports":[{"port":80}]}`)
	told("free it by applying that service (vipctl apply)")
	if got := f.last().Services.At("web").Allocated; len(got) != 1 || got[0].String() != "10.96.0.0" {
		t.Errorf("allocated addresses of web = %v, want only the oldest, 10.96.0.0", got)
	}
	if r := apply(t, w, definitions.Change{Name: "web", Fields: auto(""), Base: definitions.Any}); !r.Changed {
		t.Error("Apply = no change, want it to free the orphaned addresses")
	}
	f.wait("the end of the problem", func(s store.Snapshot) bool { return len(s.Problems) == 0 })
	if got := p.holders(); len(got) != 1 || got["10.96.0.0"] != "web" {
		t.Errorf("held addresses = %v, want only 10.96.0.0, held by web", got)
	}
	p.remove("/services/web")
	told("does not exist")
	if r := apply(t, w, definitions.Change{Name: "web"}); !r.Changed || len(p.holders()) != 0 {
		t.Errorf("Apply = %+v; held addresses = %v, want a change and none", r, p.holders())
	}
	f.wait("the end of the problem", func(s store.Snapshot) bool { return len(s.Problems) == 0 })
}
