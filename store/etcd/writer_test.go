package etcd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// newWriter returns a Store that writes with the given configuration. It is closed when the test
// ends.
func newWriter(t *testing.T, config client.Config) *etcd.Store {
	t.Helper()
	w, err := etcd.NewStore(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// fields returns the fields of a service with the port n.
func fields(n int) map[string]any {
	return map[string]any{"vips": []any{"10.96.0.10"}, "ports": []any{map[string]any{"port": int64(n)}}}
}

func apply(t *testing.T, w *etcd.Store, c definitions.Change) client.Result {
	t.Helper()
	r, err := w.Apply(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestApply(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	first := apply(t, w, definitions.Change{Name: "web", Fields: fields(80), By: "alice"})
	if s := f.reaches(first.Revision); !first.Changed || s.Services.At("web") == nil || s.Services.At("web").Origin.Revision != first.Revision {
		t.Fatalf("Apply = %+v, service in the snapshot = %+v, want a change at the same revision", first, s.Services.At("web"))
	}
	// An equal definition in another form must not be written.
	other := fields(80)
	other["endpoints"] = []any{}
	other["ports"].([]any)[0].(map[string]any)["protocol"] = "tcp"
	if again := apply(t, w, definitions.Change{Name: "web", Fields: other, Base: first.Revision}); again != (client.Result{Revision: first.Revision}) {
		t.Errorf("repeated Apply = %+v, want no change at revision %d", again, first.Revision)
	}
	second := apply(t, w, definitions.Change{Name: "web", Fields: fields(81), Base: first.Revision, By: "bob"})
	expectConflict := func(base int64, want ...string) {
		t.Helper()
		_, err := w.Apply(t.Context(), definitions.Change{Name: "web", Fields: fields(82), Base: base, By: "carol"})
		if _, ok := errors.AsType[*definitions.ConflictError](err); !ok {
			t.Fatalf("Apply = %v, want a ConflictError", err)
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("conflict = %v, want one that contains %q", err, text)
			}
		}
	}
	expectConflict(first.Revision, "service web was changed", "by bob", fmt.Sprintf("revision %d", second.Revision), "at 20")
	expectConflict(0, "by bob")
	foreign := p.put("/services/web", web)
	expectConflict(second.Revision, fmt.Sprintf("(now at revision %d) since it was read", foreign))
	apply(t, w, definitions.Change{Name: "web", Fields: fields(83), Base: definitions.Any, By: "carol"})
	removed := apply(t, w, definitions.Change{Name: "web", Base: definitions.Any, By: "dave"})
	expectConflict(foreign, "service web was removed by dave")
	if again := apply(t, w, definitions.Change{Name: "web"}); again.Changed {
		t.Errorf("repeated removal = %+v, want no change", again)
	}
	f.reaches(removed.Revision)

	past, err := w.History(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	var story []string
	for _, e := range past {
		port := "removed"
		if e.Fields != nil {
			port = fmt.Sprint(e.Fields["ports"].([]any)[0].(map[string]any)["port"])
		}
		story = append(story, fmt.Sprintf("%d %s %s %t", e.N, e.By, port, e.At.IsZero()))
	}
	if want := []string{"1 alice 80 false", "2 bob 81 false", "3  80 true", "4 carol 83 false", "5 dave removed false"}; !reflect.DeepEqual(story, want) {
		t.Errorf("history = %q, want %q", story, want)
	}
	back := apply(t, w, definitions.Change{Name: "web", Fields: past[1].Fields, By: "erin"})
	if s := f.reaches(back.Revision).Services.At("web"); s == nil || s.Ports[0].Port != 81 {
		t.Errorf("after applying the second definition again: service = %+v, want port 81", s)
	}
}

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	w := newWriter(t, configAt(c, 0))
	for want, change := range map[string]definitions.Change{
		"is not a valid service name": {Name: "Web", Fields: fields(80)},
		"ports":                       {Name: "web", Fields: map[string]any{"vips": []any{"10.0.0.1"}}},
		"unknown field":               {Name: "web", Fields: map[string]any{"vips": []any{"10.0.0.1"}, "ports": []any{map[string]any{"port": int64(1)}}, "color": "red"}},
	} {
		if _, err := w.Apply(t.Context(), change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if s, err := w.Read(t.Context(), nil); err != nil || s.Services.Len() != 0 {
		t.Errorf("after refused changes: services = %d, %v, want 0", s.Services.Len(), err)
	}
}

// TestWritesWhatIsRead writes values that are too long for a source to accept. They must not be
// written, and the error must name the key and the maximum length.
func TestWritesWhatIsRead(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w, long := newWriter(t, p.config), strings.Repeat("x", 16<<10)
	target, _ := balancer.ParseTarget("web", "10.0.0.1:80")
	p.put("/pools/big", `{"cidrs":["10.96.0.0/24"],"note":"`+long[:16000]+`"}`)
	before := p.now()
	networks := make([]netip.Prefix, 30)
	for i := range networks {
		networks[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 97, byte(i), 0}), 24)
	}
	for key, write := range map[string]func() error{
		"/overrides/web/10.0.0.1:80": func() error {
			_, err := w.EditOverride(t.Context(), target, func(balancer.Override) *balancer.Override {
				return &balancer.Override{Draining: new(bool), Reason: long}
			})
			return err
		},
		"/nodes/n1/config": func() error {
			_, err := w.SetNode(t.Context(), "n1", func(schema.NodeConfig) schema.NodeConfig { return schema.NodeConfig{Standby: true, Reason: long} })
			return err
		},
		"/ownership/policy/10.96.0.1": func() error {
			_, err := w.SetPolicy(t.Context(), netip.MustParseAddr("10.96.0.1"), map[string]any{"note": long}, true)
			return err
		},
		"/pools/big": func() error {
			_, err := w.SetPool(t.Context(), "big", networks)
			return err
		},
	} {
		if err := write(); err == nil || !strings.Contains(err.Error(), p.config.Prefix+key+" would have 16") || !strings.Contains(err.Error(), "reads at most 16384") {
			t.Errorf("%s: error = %v, want one with the key and the maximum length", key, err)
		}
	}
	if after := p.now(); after != before {
		t.Errorf("revisions since the start = %d, want 0", after-before)
	}
}

// TestRegistrarRefuses creates registrars for endpoints that a source would reject. Registrar must
// return an error that names the key.
func TestRegistrarRefuses(t *testing.T) {
	w := newWriter(t, client.Config{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/vipd"})
	for want, change := range map[string]func(*balancer.Endpoint){
		"0.0.0.0 is the unspecified address": func(e *balancer.Endpoint) { e.Address = netip.IPv4Unspecified() },
		"224.0.0.1 is a multicast address":   func(e *balancer.Endpoint) { e.Address = netip.MustParseAddr("224.0.0.1") },
		"has a zone":                         func(e *balancer.Endpoint) { e.Address = netip.MustParseAddr("fe80::1%eth0") },
		"max_connections: ":                  func(e *balancer.Endpoint) { e.MaxConnections = 1 << 40 },
		"reads at most 16384":                func(e *balancer.Endpoint) { e.Zone = strings.Repeat("z", 16<<10) },
	} {
		e := someEndpoint()
		change(&e)
		if _, err := w.Registrar(balancerID("web", "a"), e, time.Minute); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/vipd/endpoints/web/a") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// large returns the fields of a service whose text has at least the given number of bytes. Its
// nested lists have 30 KB, but would have 500 KB with each element on a line of its own.
func large(bytes int) map[string]any {
	f, deep := fields(80), []any{1}
	for range 10 {
		deep = []any{deep}
	}
	f["long"], f["deep"] = strings.Repeat("x", bytes), slices.Repeat([]any{deep}, 1300)
	return f
}

// TestLargeService writes services that fit into a transaction together with the new entry of their
// history, and services that do not fit. The write must fail for the latter, with an error that
// explains a fix, and the dry run must return the same error.
func TestLargeService(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	const fits, beyond = 600_000, 700_000
	try := func(what string, bytes int, good bool) {
		t.Helper()
		stored, err := w.Service(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		change := definitions.Change{Name: "web", Fields: large(bytes), Base: definitions.Any, AllowUnknown: true}
		dry := w.Check(t.Context(), change, stored)
		_, err = w.Apply(t.Context(), change)
		if (err == nil) != good || fmt.Sprint(dry) != fmt.Sprint(err) {
			t.Errorf("%s: dry run = %v, write = %v, want the same error, or nil if the service fits", what, dry, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "service web is too large") || !strings.Contains(err.Error(), "Split the service")) {
			t.Errorf("%s: error = %v, want one that names the service and a fix", what, err)
		}
	}
	try("too large", beyond, false)
	try("just fits", fits, true)
	try("too large for its history", beyond, false)
	try("in place of what the history has", fits+1, true)
	text, err := json.Marshal(large(fits))
	if err != nil {
		t.Fatal(err)
	}
	p.put("/services/web", string(text))
	try("in place of what the history lacks", fits+2, false)
	try("less in place of that", fits/2, true)
	apply(t, w, definitions.Change{Name: "web", Base: definitions.Any})
}

// TestHistoryLength changes a service many times. The history must keep only the last 20 entries.
func TestHistoryLength(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	w := newWriter(t, configAt(c, 0))
	for i := range 30 {
		apply(t, w, definitions.Change{Name: "web", Fields: fields(1 + i), Base: definitions.Any})
	}
	past, err := w.History(t.Context(), "web")
	if err != nil || len(past) != 20 || past[0].N != 11 || past[19].N != 30 {
		t.Errorf("entries of the history = %d, from number %d to %d, %v, want 20 from 11 to 30", len(past), past[0].N, past[len(past)-1].N, err)
	}
}

// TestHistoryOfStrangers writes an entry with the highest possible number into a history, as
// another program might. Later changes must still be written, each with its own entry.
func TestHistoryOfStrangers(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	p.put("/history/db/9223372036854775807", "{}")
	w := newWriter(t, p.config)
	for i := range 3 {
		apply(t, w, definitions.Change{Name: "db", Fields: fields(80 + i), Base: definitions.Any})
	}
	if past, err := w.History(t.Context(), "db"); err != nil || len(past) != 3 || past[2].N != 3 {
		t.Errorf("history = %+v, %v, want 3 entries with numbers up to 3", past, err)
	}
}

// TestRace makes several writers change the same service and the same override concurrently. The
// changes to the service have the same base revision, so exactly one of them must succeed. The
// changes to the override have no base revision, so all of them must succeed, one after the other.
func TestRace(t *testing.T) {
	t.Parallel()
	const n = 8
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, config: configAt(c, 0)}
	base := apply(t, newWriter(t, p.config), definitions.Change{Name: "web", Fields: fields(80)}).Revision
	var won atomic.Int64
	var running sync.WaitGroup
	target, _ := balancer.ParseTarget("web", "10.0.0.1:80")
	for i := range n {
		w := newWriter(t, p.config)
		running.Go(func() {
			_, err := w.Apply(t.Context(), definitions.Change{Name: "web", Fields: fields(100 + i), Base: base})
			var conflict *definitions.ConflictError
			if err == nil {
				won.Add(1)
			} else if !errors.As(err, &conflict) {
				t.Error(err)
			}
			if _, err := w.EditOverride(t.Context(), target, func(o balancer.Override) *balancer.Override {
				weight := 1
				if o.Weight != nil {
					weight = *o.Weight + 1
				}
				o.Weight = &weight
				return &o
			}); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if won.Load() != 1 {
		t.Errorf("successful changes to the service = %d of %d, want 1", won.Load(), n)
	}
	s, err := newWriter(t, p.config).Read(t.Context(), nil)
	if o := s.Overrides.At(target); err != nil || o == nil || *o.Weight != n {
		t.Errorf("override = %+v, %v, want weight %d", o, err, n)
	}
}

// TestRemove removes a service with overrides, with endpoints under leases, and with endpoints
// without a lease. A single transaction must remove the service, its overrides and the endpoints
// without a lease. Endpoints under leases must remain, and so must a service whose name starts with
// the removed service's name.
func TestRemove(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	for _, name := range []balancer.Name{"web", "web-2"} {
		apply(t, w, definitions.Change{Name: name, Fields: fields(80)})
		for i := range 60 {
			p.put(fmt.Sprintf("/endpoints/%s/e%d", name, i), fmt.Sprintf(`{"address":"10.0.%d.%d"}`, i>>8, i&255))
		}
		for i := range 3 {
			p.put(fmt.Sprintf("/overrides/%s/10.0.0.%d", name, i), `{"weight":1}`)
		}
	}
	r, err := w.Registrar(balancer.EndpointID{Service: "web", ID: "held"}, balancer.Endpoint{Address: netip.MustParseAddr("10.0.0.1"), Weight: 1}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	run(t, r)
	p.await("the endpoint", func(s store.Snapshot) bool { return s.Endpoints.Len() == 121 })
	before := p.now()
	if r := apply(t, w, definitions.Change{Name: "web", Base: definitions.Any}); r.Revision != before+1 {
		t.Errorf("revision before the removal = %d, after = %d, want exactly one more", before, r.Revision)
	}
	s := p.await("what is left", func(s store.Snapshot) bool { return s.Services.Len() == 1 })
	if s.Endpoints.Len() != 61 || s.Overrides.Len() != 3 || !s.Endpoints.Has(balancer.EndpointID{Service: "web", ID: "held"}) {
		t.Errorf("after the removal: endpoints = %d, overrides = %d, want 61 and 3", s.Endpoints.Len(), s.Overrides.Len())
	}
}

// TestRemoveMany removes a service that has more endpoints without a lease than an etcd transaction
// can delete. All of them must be removed.
func TestRemoveMany(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	apply(t, w, definitions.Change{Name: "web", Fields: fields(80)})
	const unleased, at = 1_000, 100
	for i := 0; i < unleased; i += at {
		var puts []clientv3.Op
		for j := range at {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s/endpoints/web/%d", p.config.Prefix, i+j), `{"address":"10.0.0.1"}`))
		}
		p.try("put endpoints", func(ctx context.Context) error {
			_, err := p.client.Txn(ctx).Then(puts...).Commit()
			return err
		})
	}
	apply(t, w, definitions.Change{Name: "web", Base: definitions.Any})
	p.await("nothing", func(s store.Snapshot) bool { return s.Services.Len() == 0 && s.Endpoints.Len() == 0 })
}

// await reads the state in etcd until it satisfies a condition, and returns it.
func (p *place) await(what string, cond func(store.Snapshot) bool) store.Snapshot {
	p.t.Helper()
	w := newWriter(p.t, p.config)
	var s store.Snapshot
	p.try("see "+what, func(ctx context.Context) (err error) {
		if s, err = w.Read(ctx, nil); err == nil && !cond(s) {
			err = fmt.Errorf("there are %d services, %d endpoints, %d overrides", s.Services.Len(), s.Endpoints.Len(), s.Overrides.Len())
		}
		return err
	})
	return s
}

// life is the duration of leases that must not expire while their owners are running. It is long
// because a busy machine may give an owner no CPU time for several seconds.
const life = 10 * time.Second

// run runs a registrar until stop is called or the test ends.
func run(t *testing.T, r *definitions.Registrar) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

func balancerID(service balancer.Name, id string) balancer.EndpointID {
	return balancer.EndpointID{Service: service, ID: id}
}

func someEndpoint() balancer.Endpoint {
	return balancer.Endpoint{Address: netip.MustParseAddr("10.0.0.1"), Weight: 3, Port: 8080}
}

// TestRegistrar runs a registrar. The endpoint's key must exist, and must be written again after
// each loss. When another registrar takes over the endpoint's key, the first registrar must not
// change the key. Finally, the endpoint must drain, and must be removed immediately when its
// registrar leaves.
func TestRegistrar(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	id, endpoint := balancerID("web", "a"), someEndpoint()
	r, err := w.Registrar(id, endpoint, life)
	if err != nil {
		t.Fatal(err)
	}
	var said reports
	r.Report = said.add
	stop := run(t, r)
	apply(t, w, definitions.Change{Name: "web", Fields: fields(80)})
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	present := func(s store.Snapshot) bool {
		e := s.Endpoints.At(id)
		return s.Connected && e != nil && reflect.DeepEqual(*e, endpoint) && len(s.Problems) == 0
	}
	before := f.wait("the endpoint", present).Revision
	p.remove("/endpoints/web/a")
	f.wait("its end, and return", func(s store.Snapshot) bool { return present(s) && s.Revision > before+1 })
	c.Members[0].Stop()
	c.Members[0].Wipe()
	c.Members[0].Start()
	apply(t, newWriter(t, p.config), definitions.Change{Name: "web", Fields: fields(80)})
	p.await("the endpoint in a new etcd", func(s store.Snapshot) bool { return s.Endpoints.Has(id) })
	f.wait("the endpoint in the snapshot", present)

	second, err := w.Registrar(id, endpoint, time.Minute) // long, because etcd must answer within a quarter of it
	if err != nil {
		t.Fatal(err)
	}
	stopSecond := run(t, second) // takes over the key, as a restarted registrar does
	f.wait("the key to be taken over", func(store.Snapshot) bool {
		return strings.Contains(said.last(), "held by another registrar")
	})
	stop()
	if err := r.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.await("the second's endpoint", func(s store.Snapshot) bool { return s.Endpoints.Has(id) }); s.Endpoints.Len() != 1 {
		t.Error("after the first registrar left, want only the second registrar's endpoint")
	}
	stopSecond()
	wait.For(t, within, "the first to report the second's key", func() bool {
		err := r.Drain(t.Context())
		if err == nil {
			t.Fatal("Drain by the first registrar, whose endpoint the second holds = nil, want an error")
		}
		return errors.Is(err, definitions.ErrHeld)
	})
	if err := second.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.wait("draining", func(s store.Snapshot) bool { e := s.Endpoints.At(id); return e != nil && e.Draining })
	if got, err := c.Client().Get(t.Context(), p.config.Prefix+"/endpoints/web/a"); err != nil || got.Kvs[0].ModRevision != second.Revision() {
		t.Errorf("the endpoint's key after Drain = %+v, want it at the registrar's revision %d; error = %v", got, second.Revision(), err)
	}
	if err := second.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.wait("the removal of the endpoint", func(s store.Snapshot) bool { return s.Endpoints.Len() == 0 && len(s.Problems) == 0 })
}

// TestRegistrarStopped stops registrars at random times, often while they register. Placed must
// report whether the endpoint is in etcd. It must be possible to drain an endpoint that is in etcd.
func TestRegistrarStopped(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	config := configAt(c, 0)
	w, random := newWriter(t, config), rand.New(rand.NewPCG(1, 2))
	apply(t, w, definitions.Change{Name: "web", Fields: fields(80)}) // connects the writer to etcd
	for i := range 60 {
		id := balancerID("web", fmt.Sprint("e", i))
		r, err := w.Registrar(id, someEndpoint(), time.Minute) // long, because etcd must answer within a quarter of it
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, r)
		time.Sleep(time.Duration(random.IntN(8000)) * time.Microsecond) // so Run ends at a different point each time
		stop()
		placed := r.Placed()
		present, err := c.Client().Get(t.Context(), config.Prefix+"/endpoints/web/"+id.ID)
		if err != nil {
			t.Fatal(err)
		}
		if placed != (len(present.Kvs) > 0) {
			t.Fatalf("endpoint %d: Placed = %v, keys in etcd = %d, want true only if there is a key", i, placed, len(present.Kvs))
		}
		if placed {
			if err := r.Drain(t.Context()); err != nil {
				t.Fatalf("endpoint %d: Drain = %v, want nil", i, err)
			}
		}
	}
}

// TestRegistrarYields disconnects a registrar until its lease expires and another registrar has
// registered the endpoint. When the first registrar is connected again, it must not replace the key
// of the other.
func TestRegistrarYields(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	direct := &place{t: t, client: p.client, config: configAt(c, 0)}
	id := balancerID("web", "b")
	start := func(config client.Config, weight int, ttl time.Duration) *reports {
		e := someEndpoint()
		e.Weight = weight
		r, err := newWriter(t, config).Registrar(id, e, ttl)
		if err != nil {
			t.Fatal(err)
		}
		said := &reports{}
		r.Report = said.add
		run(t, r)
		return said
	}
	has := func(weight int) func(store.Snapshot) bool {
		return func(s store.Snapshot) bool { e := s.Endpoints.At(id); return e != nil && e.Weight == weight }
	}
	said := start(p.config, 1, client.MinTTL)
	direct.await("the first", has(1))
	relay.Cut()
	direct.await("the end of its lease", func(s store.Snapshot) bool { return !s.Endpoints.Has(id) })
	start(direct.config, 2, life)
	direct.await("the second", has(2))
	relay.Heal()
	wait.For(t, within, "the first to report the other registrar", func() bool { return strings.Contains(said.last(), "held by another registrar") })
	direct.await("the second still", has(2))
}

// TestWriterRights writes as a user without write permission, before and after the user's token
// expires. The error must name the missing permission. With an expired token, the writer must get a
// new token.
func TestWriterRights(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{TokenTTL: time.Second})
	c.EnableAuth(etcdkit.User{Name: "web", Password: "secret", Read: []string{"/vipda/"}, Write: []string{"/vipda/endpoints/web/"}})
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := configAt(c, 0)
	config.Username, config.PasswordFile = "web", file
	w := newWriter(t, config)
	for range 2 {
		_, err := w.Apply(t.Context(), definitions.Change{Name: "web", Fields: fields(80)})
		if err == nil || !strings.Contains(err.Error(), "the user web may not do that: its role has no permission for /vipda/services/web") {
			t.Errorf("Apply without permission = %v, want an error with the user and the key", err)
		}
		time.Sleep(3 * time.Second) // until the token expires; etcd checks for that every second
	}
	if _, err := w.Read(t.Context(), nil); err != nil {
		t.Errorf("Read with an expired token = %v, want nil", err)
	}
}

// TestAuthTurnedOn enables authentication while a writer with a user and a password is running. The
// writer must continue to work.
func TestAuthTurnedOn(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	config := p.config
	config.Username, config.PasswordFile = "vipd", filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWriter(t, config)
	apply(t, w, definitions.Change{Name: "db", Fields: fields(80)})
	c.EnableAuth(etcdkit.User{Name: "vipd", Password: "secret", Read: []string{"/vipda/"}, Write: []string{"/vipda/"}})
	if r := apply(t, w, definitions.Change{Name: "db", Fields: fields(81), Base: definitions.Any}); !r.Changed {
		t.Error("Apply after authentication was enabled = no change, want a change")
	}
}

// TestNoServer reads from an address where no server runs. The error must be returned immediately.
func TestNoServer(t *testing.T) {
	w := newWriter(t, client.Config{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/vipd"})
	began := time.Now()
	_, err := w.Read(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "etcd at http://127.0.0.1:1: ") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("error = %v, want one with the endpoint and the refused connection", err)
	}
	if took := time.Since(began); took > wait.Patience {
		t.Errorf("Read took %s, want at most %s", took, wait.Patience)
	}
}
