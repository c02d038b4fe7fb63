package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// reports records the reports of a registrar, a voter or a presence.
type reports struct {
	mu  sync.Mutex // guards all
	all []string
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprint(err))
}

func (r *reports) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == 0 {
		return ""
	}
	return r.all[len(r.all)-1]
}

// troubles returns the number of reports with an error.
func (r *reports) troubles() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, report := range r.all {
		if report != "<nil>" {
			n++
		}
	}
	return n
}

// contains reports whether any report contains a word.
func (r *reports) contains(word string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(strings.Join(r.all, "\n"), word)
}

// present is the running presence of a node, with its reports.
type present struct {
	*fleet.Presence
	reports
	stop func()
}

func appear(t *testing.T, w *etcd.Store, node, version string, ttl time.Duration) *present {
	t.Helper()
	p, err := w.Presence(node, schema.NodeLive{Version: version, Started: time.Now()}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	out := &present{Presence: p}
	p.Report = out.add
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	out.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(out.stop)
	return out
}

// node waits until the node satisfies a condition, and returns the node. If the node does not
// exist, the condition receives nil.
func (p *place) node(name, what string, is func(*fleet.Node) bool) *fleet.Node {
	p.t.Helper()
	w := newWriter(p.t, p.config)
	var found *fleet.Node
	p.try("have "+what, func(ctx context.Context) error {
		nodes, _, err := w.Nodes(ctx)
		if err != nil {
			return err
		}
		found = nil
		if i := slices.IndexFunc(nodes, func(n fleet.Node) bool { return n.Name == name }); i >= 0 {
			found = &nodes[i]
		}
		if !is(found) {
			return fmt.Errorf("it is %+v", found)
		}
		return nil
	})
	return found
}

func isGone(n *fleet.Node) bool { return n == nil }

// hasRevision returns a condition that is true if a node is live and has a status with the given
// revision.
func hasRevision(revision int64) func(*fleet.Node) bool {
	return func(n *fleet.Node) bool {
		return n != nil && n.Live != nil && n.Status != nil && n.Status.Revision == revision
	}
}

// TestPresence runs the presence of a node, and removes the presence's keys. The keys must exist
// while the presence runs, and must be written again after each loss. When the presence ends, they
// must be removed.
func TestPresence(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	n := appear(t, newWriter(t, p.config), "n1", "1.0", life)
	live := p.node("n1", "the node", func(n *fleet.Node) bool { return n != nil && n.Live != nil })
	if live.Live.Version != "1.0" || live.Status != nil || live.Live.Started.IsZero() {
		t.Errorf("node = %+v, want version 1.0, a start time and no status", live.Live)
	}
	n.SetStatus(schema.NodeStatus{Revision: 7, Mode: "ipvs", Drains: []schema.NodeDrain{{Service: "web", Address: "10.0.0.1:80", Active: 3}}})
	status := p.node("n1", "its status", hasRevision(7)).Status
	if status.Mode != "ipvs" || len(status.Drains) != 1 || status.Drains[0] != (schema.NodeDrain{Service: "web", Address: "10.0.0.1:80", Active: 3}) {
		t.Errorf("status = %+v, want the mode ipvs and one drain", status)
	}
	many := schema.NodeStatus{Revision: 8, Drains: make([]schema.NodeDrain, 20000)}
	for i := range many.Drains {
		many.Drains[i] = schema.NodeDrain{Service: balancer.Name(strings.Repeat("s", 63)), Address: fmt.Sprintf("[fd00:1111:2222:3333:4444:5555:6666:%x]:8080", i), Active: uint64(i)}
	}
	n.SetStatus(many)
	status = p.node("n1", "more drains than etcd takes", hasRevision(8)).Status
	if len(status.Drains) != schema.MaxNodeDrains || status.DrainsOmitted != len(many.Drains)-schema.MaxNodeDrains || status.Drains[0].Active != 19999 {
		t.Errorf("drains in the status = %d, omitted = %d, first = %+v; want the maximum number of drains, the number of omitted drains, and the drain with the most connections first", len(status.Drains), status.DrainsOmitted, status.Drains[0])
	}
	n.SetStatus(schema.NodeStatus{Revision: 7})
	p.node("n1", "few again", hasRevision(7))
	p.remove("/nodes/n1/live")
	p.node("n1", "the lost key again", hasRevision(7))
	p.remove("/nodes/n1/status")
	p.node("n1", "the lost status again", hasRevision(7))
	p.revoke()
	p.node("n1", "both again after the lease ended", hasRevision(7))
	c.Members[0].Stop()
	c.Members[0].Wipe()
	c.Members[0].Start()
	p.client = c.Client()
	p.node("n1", "both in a new etcd", hasRevision(7))
	wait.For(t, within, "a report without an error", func() bool { return n.last() == "<nil>" })
	for tries, ended := 1, false; !ended; tries++ { // repeated if etcd was slow, because stop waits only two seconds for etcd
		began := time.Now()
		n.stop()
		late := time.Since(began) >= 2*time.Second
		nodes, _, err := newWriter(t, p.config).Nodes(t.Context())
		if ended = err == nil && len(nodes) == 0; !ended && (!late || tries == 5) {
			t.Fatalf("after the presence ended (try %d): nodes = %+v, %v, want none", tries, nodes, err)
		}
		if !ended {
			n = appear(t, newWriter(t, p.config), "n1", "1.0", life)
			p.node("n1", "the node once more", func(n *fleet.Node) bool { return n != nil && n.Live != nil })
			wait.For(t, within, "a report without an error", func() bool { return n.last() == "<nil>" })
		}
	}
	p.leases(0)
}

// leases waits until exactly n leases exist, and returns them. There may be more leases at first: a
// lease that etcd granted too late for its client remains until it expires.
func (p *place) leases(n int) (ids []clientv3.LeaseID) {
	p.t.Helper()
	p.try(fmt.Sprintf("have %d leases", n), func(ctx context.Context) error {
		answer, err := p.client.Leases(ctx)
		if err != nil {
			return err
		}
		ids = nil
		for _, l := range answer.Leases {
			ids = append(ids, l.ID)
		}
		if len(ids) != n {
			return fmt.Errorf("there are %d", len(ids))
		}
		return nil
	})
	return ids
}

// revoke revokes the only lease.
func (p *place) revoke() {
	p.t.Helper()
	if _, err := p.client.Revoke(p.t.Context(), p.leases(1)[0]); err != nil {
		p.t.Fatal(err)
	}
}

// TestReissued replaces the certificates of a cluster and its clients, in the same files, with
// certificates from another authority. A node's presence must connect again and write its status.
func TestReissued(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{TLS: true})
	p := &place{t: t, config: overTLS(c)}
	n := appear(t, newWriter(t, p.config), "n1", "1.0", life)
	n.SetStatus(schema.NodeStatus{Revision: 7})
	p.node("n1", "its status", hasRevision(7))
	c.Kill()
	c.Reissue()
	c.Start()
	n.SetStatus(schema.NodeStatus{Revision: 8})
	p.node("n1", "its next status", hasRevision(8))
}

// TestStatusRate often changes a node's status. The newest status must soon be written, but at most
// one status a second may be written, and only if it has changed.
func TestStatusRate(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	n := appear(t, newWriter(t, p.config), "n1", "1.0", time.Minute) // the lease is long, because a late renewal would write the status again
	n.SetStatus(schema.NodeStatus{Revision: 1, At: time.Now()})
	p.node("n1", "its status", hasRevision(1))
	writes := func() int64 {
		answer, err := p.client.Get(t.Context(), p.config.Prefix+"/nodes/n1/status")
		if err != nil {
			t.Fatal(err)
		}
		return answer.Kvs[0].Version
	}
	began, before := time.Now(), writes()
	for i := range int64(250) {
		n.SetStatus(schema.NodeStatus{Revision: 2 + i, At: time.Now()})
		time.Sleep(10 * time.Millisecond) // 100 changes a second
	}
	p.node("n1", "the last status", hasRevision(251))
	if took, n := time.Since(began), writes()-before; n > int64(took/time.Second)+1 {
		t.Errorf("writes in %s = %d, want at most one a second", took, n)
	}
	before = writes()
	for range 3 {
		n.SetStatus(schema.NodeStatus{Revision: 251, At: time.Now().Add(time.Hour)})
		time.Sleep(1100 * time.Millisecond) // long enough for an unnecessary write
	}
	if n := writes() - before; n != 0 {
		t.Errorf("writes of an unchanged status = %d, want 0", n)
	}
}

// TestNodeNameTwice starts the presences of two daemons with the same node name. The second
// presence must write nothing and report the conflict. When the first presence ends, the second
// must take over.
func TestNodeNameTwice(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	first := appear(t, newWriter(t, p.config), "n1", "first", life)
	first.SetStatus(schema.NodeStatus{Revision: 1})
	p.node("n1", "the first", hasRevision(1))
	second := appear(t, newWriter(t, p.config), "n1", "second", client.MinTTL)
	second.SetStatus(schema.NodeStatus{Revision: 2})
	wait.For(t, within, "the second to report the name", func() bool {
		return strings.Contains(second.last(), "/vipda/nodes/n1/live is held by another vipd: give each host its own node name")
	})
	p.node("n1", "the first undisturbed", func(n *fleet.Node) bool { return hasRevision(1)(n) && n.Live.Version == "first" })
	first.stop()
	p.node("n1", "the second", func(n *fleet.Node) bool { return hasRevision(2)(n) && n.Live.Version == "second" })
	wait.For(t, within, "the second to take over", func() bool { return second.last() == "<nil>" })
	if first.contains("held") {
		t.Errorf("reports of the first daemon = %s, want no conflict", first.all)
	}
	second.stop()
	p.put("/nodes/n1/live", "by hand")
	third := appear(t, newWriter(t, p.config), "n1", "third", client.MinTTL)
	wait.For(t, within, "the third to report the key without a lease", func() bool { return strings.Contains(third.last(), "without a lease: delete it") })
	p.remove("/nodes/n1/live")
	p.node("n1", "the third", func(n *fleet.Node) bool { return n != nil && n.Live != nil && n.Live.Version == "third" })
}

// TestPresenceAfterCrash starts a node's presence while etcd still has a killed daemon's key. When
// the key's lease expires, the presence must take over, without having reported a conflict.
func TestPresenceAfterCrash(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	lease, err := p.client.Grant(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	p.put("/nodes/n1/live", `{"version":"former"}`, clientv3.WithLease(lease.ID))
	n := appear(t, newWriter(t, p.config), "n1", "next", life)
	p.node("n1", "the next run", func(n *fleet.Node) bool { return n != nil && n.Live != nil && n.Live.Version == "next" })
	wait.For(t, within, "the report", func() bool { return n.last() == "<nil>" })
	if n.contains("held") {
		t.Errorf("reports = %s, want no conflict", n.all)
	}
}

// TestPresenceThroughOutages causes several kinds of etcd outages. After each outage, the presence
// must write its keys again. SetStatus must never block.
func TestPresenceThroughOutages(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	direct := &place{t: t, client: p.client, config: configAt(c, 0)}
	n := appear(t, newWriter(t, p.config), "n1", "1.0", 2*time.Second)
	revision := int64(0)
	for name, fault := range map[string]func(){"refused": relay.Cut, "swallowed": relay.Freeze, "killed": c.Members[0].Kill} {
		revision++
		n.SetStatus(schema.NodeStatus{Revision: revision})
		direct.node("n1", "the node before "+name, hasRevision(revision))
		fault()
		wait.For(t, within, "the reported outage", func() bool { return strings.Contains(n.last(), "etcd at http") })
		revision++
		began := time.Now()
		n.SetStatus(schema.NodeStatus{Revision: revision})
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: SetStatus took %s, want at most 10 s", name, took)
		}
		if name != "killed" {
			direct.node("n1", "it to end with its lease", isGone)
		} else {
			c.Members[0].Start()
		}
		c.Compact()
		relay.Heal()
		direct.node("n1", "the node after "+name, hasRevision(revision))
		wait.For(t, within, "the end of the reported outage", func() bool { return n.last() == "<nil>" })
	}
	relay.Freeze()
	began := time.Now()
	n.stop()
	if took := time.Since(began); took > wait.Patience {
		t.Errorf("time until Run returned without etcd = %s, want at most wait.Patience", took)
	}
}

// TestLeaseOutlivesFrozenMember freezes two of three members, possibly including the member in use.
// The registrar must move to another member before its lease expires.
func TestLeaseOutlivesFrozenMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	config := w.through()
	r, err := newWriter(t, config).Registrar(balancerID("web", "a"), someEndpoint(), 2*life)
	if err != nil {
		t.Fatal(err)
	}
	run(t, r)
	key := w.config.Prefix + "/endpoints/web/a"
	created := func() (revision int64) {
		w.try("return the endpoint", func(ctx context.Context) error {
			answer, err := w.client.Get(ctx, key)
			if err == nil && len(answer.Kvs) > 0 {
				revision = answer.Kvs[0].CreateRevision
			}
			return err
		})
		return revision
	}
	wait.For(t, within, "the endpoint", func() bool { return created() != 0 })
	was := created()
	for _, relay := range w.relays[:2] { // the registrar tries the three members in turn
		relay.Freeze()
	}
	for end := time.Now().Add(2*life + time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // longer than the duration of the lease
		if now := created(); now != was {
			t.Fatalf("creation revision of the endpoint = %d, want %d, because the key must never be deleted", now, was)
		}
	}
}
