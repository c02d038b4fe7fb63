package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestFaults injects random faults into a cluster. Connections to members are cut or drop all data,
// members crash and restart, the leader changes, and revisions are compacted. After each fault, the
// source must reach the state that a fresh read returns.
func TestFaults(t *testing.T) {
	t.Parallel()
	for seed := range uint64(wait.Soak(1, 3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			f := followWithState(t, watch.Options{Config: w.through()}, t.TempDir())
			for range 8 {
				w.fault()
				for range 1 + w.IntN(10) {
					w.write()
				}
				if w.IntN(3) == 0 {
					w.cluster.Compact()
				}
				for range w.IntN(5) {
					w.write()
				}
				w.heal()
				w.compare(f)
			}
		})
	}
}

// world is a cluster of three members that suffers faults. Clients connect through a relay in front
// of each member.
type world struct {
	*rand.Rand
	*place
	cluster *etcdkit.Cluster
	relays  []*etcdkit.Relay
	down    int // the member that is down, or -1
	last    int64
}

func newWorld(t *testing.T, seed uint64) *world {
	c := etcdkit.Start(t, etcdkit.Options{Members: 3})
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 7)), cluster: c, down: -1,
		place: &place{t: t, client: c.Client(), config: configAt(c, 0)},
	}
	for _, m := range c.Members {
		w.relays = append(w.relays, etcdkit.NewRelay(t, m.Addr()))
	}
	return w
}

// through returns a client configuration that connects through the relays.
func (w *world) through() client.Config {
	config := w.config
	config.Endpoints = nil
	for _, r := range w.relays {
		config.Endpoints = append(config.Endpoints, w.cluster.URL(r.Addr()))
	}
	return config
}

func (w *world) fault() {
	switch w.IntN(6) {
	case 0:
		for _, r := range w.relays {
			r.Cut()
		}
	case 1:
		for _, r := range w.relays {
			r.Freeze()
		}
	case 2:
		w.relays[w.IntN(3)].Cut()
	case 3:
		w.relays[w.IntN(3)].Freeze()
	case 4:
		w.down = w.IntN(3)
		w.cluster.Members[w.down].Kill()
	case 5:
		w.cluster.MoveLeader()
	}
}

func (w *world) heal() {
	for _, r := range w.relays {
		r.Heal()
	}
	if w.down >= 0 {
		w.cluster.Members[w.down].Start()
		w.down = -1
	}
}

// write makes a random change, which may be invalid.
func (w *world) write() {
	name, n := fmt.Sprintf("s%d", w.IntN(4)), w.IntN(5)
	endpoint := fmt.Sprintf("/endpoints/%s/e%d", name, w.IntN(4))
	override := fmt.Sprintf("/overrides/%s/10.0.0.%d", name, w.IntN(3))
	vip := fmt.Sprintf("/vips/10.97.0.%d", w.IntN(6))
	switch w.IntN(14) {
	case 0:
		w.last = w.put("/services/"+name, fmt.Sprintf(`{"vips":["10.96.0.%d"],"ports":[{"port":%d}]}`, n, 80+n))
	case 1:
		w.last = w.put("/services/"+name, `{"vips":["10.96.0.1"],"ports":"http"}`)
	case 2:
		w.remove("/services/" + name)
	case 3, 4:
		w.last = w.put(endpoint, fmt.Sprintf(`{"address":"192.168.1.%d","weight":%d}`, n, w.IntN(3)))
	case 5:
		w.last = w.put(endpoint, `{`)
	case 6:
		w.remove(endpoint)
	case 7:
		w.last = w.put(override, fmt.Sprintf(`{"weight":%d,"by":"me"}`, n))
	case 8:
		w.remove(override)
	case 9:
		w.last = w.put("/services/"+name, `{"vips":["auto","auto:blue"],"ports":[{"port":80}]}`)
	case 10, 11:
		w.last = w.put(vip, name)
	case 12:
		w.remove(vip)
	case 13:
		w.last = w.put(vip, []string{name, name, name, "?"}[w.IntN(4)])
	}
}

// compare checks that f, a new source and a fresh read agree on the state.
func (w *world) compare(f *follower) {
	w.t.Helper()
	w.last = w.put("/services/last", fmt.Sprintf(`{"vips":["10.96.1.1"],"ports":[{"port":%d}]}`, 1+w.IntN(60000)))
	fresh := follow(w.t, newSource(w.t, watch.Options{Config: w.config}))
	want := fresh.reaches(w.last)
	fresh.stop()
	read, err := newWriter(w.t, w.config).Read(w.t.Context(), nil)
	if err := errors.Join(err, agree(read, want)); err != nil || read.Revision < w.last {
		w.t.Errorf("a new source differs from a read at revision %d: %v", read.Revision, err)
	}
	defer func() {
		if err != nil {
			w.t.Log(err)
		}
	}()
	f.wait(fmt.Sprintf("what a fresh reading finds at revision %d", w.last), func(s store.Snapshot) bool {
		err = agree(s, want)
		return s.Connected && f.Source.Position().Seen >= w.last && err == nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

// TestOneRevision reads the first state in pages, while a writer changes it. The first snapshot
// must be the state at a single revision.
func TestOneRevision(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	for i := range 100 { // these services fill many pages between the services a and z
		p.put(fmt.Sprintf("/services/m%d", i), web)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			n := 1 + i%60_000
			service := fmt.Sprintf(`{"vips":["10.96.0.1"],"ports":[{"port":%d}]}`, n)
			_, err := p.client.Txn(ctx).Then(
				clientv3.OpPut("/vipda/services/a", service), clientv3.OpPut("/vipda/services/z", service),
				clientv3.OpPut("/vipda/endpoints/a/z", fmt.Sprintf(`{"address":"10.0.0.1","weight":%d}`, n)),
			).Commit()
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	defer writing.Wait()
	defer cancel()
	p.await("the first writes", func(s store.Snapshot) bool { return s.Services.Has("z") })
	for range 20 {
		f := follow(t, newSource(t, watch.Options{Config: p.config}))
		f.wait("the first state", connected)
		f.mu.Lock()
		s := f.all[slices.IndexFunc(f.all, connected)] // on a busy machine, earlier snapshots may report that etcd is unavailable
		f.mu.Unlock()
		f.stop()
		a, z := s.Services.At("a").Ports[0].Port, s.Services.At("z").Ports[0].Port
		if e := s.Endpoints.At(balancer.EndpointID{Service: "a", ID: "z"}); a != z || e.Weight != int(a) {
			t.Fatalf("values that one transaction wrote = %d, %d and %d in the first snapshot, want equal values", a, z, e.Weight)
		}
	}
}

// TestWritesWaitForALeader writes through a member while the cluster has no leader. The write must
// wait until a new leader is elected.
func TestWritesWaitForALeader(t *testing.T) {
	c := etcdkit.Start(t, etcdkit.Options{Members: 3})
	client := c.Client()
	for tries := 1; ; tries++ {
		leader := -1
		wait.For(t, wait.Patience, "a leader", func() bool {
			for i, endpoint := range c.Endpoints() {
				if status, err := client.Status(t.Context(), endpoint); err == nil && status.Leader == status.Header.MemberId {
					leader = i
				}
			}
			return leader >= 0
		})
		config := configAt(c, 0)
		config.Endpoints = []string{c.Endpoints()[(leader+1)%3]}
		w := newWriter(t, config)
		if _, err := w.Apply(t.Context(), definitions.Change{Name: "web", Fields: fields(tries), Base: definitions.Any}); err != nil {
			t.Fatal(err)
		}
		c.Members[leader].Pause() // from now on, requests must wait until another leader is elected
		began := time.Now()
		r, err := w.Apply(t.Context(), definitions.Change{Name: "web", Base: definitions.Any})
		took := time.Since(began)
		c.Members[leader].Resume()
		if err == nil && r.Changed {
			return
		}
		if took < 9*time.Second || tries == 4 { // a writer waits for ten seconds, but an election may last longer on a busy machine
			t.Fatalf("write during an election = %+v, %v, want success", r, err)
		}
	}
}

// TestMemberProblem pauses one of three members. A problem must name this member until it answers
// again.
func TestMemberProblem(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{Members: 3})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/services/web", web)
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	f.wait("the first state", connected)
	c.Members[1].Pause()
	f.wait("the problem", func(s store.Snapshot) bool {
		return s.Connected && len(s.Problems) == 1 && strings.Contains(s.Problems[0].Text, c.Endpoints()[1])
	})
	c.Members[1].Resume()
	f.wait("the end of the problem", func(s store.Snapshot) bool { return s.Connected && len(s.Problems) == 0 })
}
