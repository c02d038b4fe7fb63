package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"vipd/test/wait"
)

// fault describes a failure that a fleet must survive.
type fault struct {
	name       string
	begin, end func()
	// lost has the nodes that lose etcd because of the fault. They must report the loss.
	lost []*node
	// quiet reports whether the fault is caused while nothing changes. busy reports whether it is
	// caused while services change.
	quiet, busy bool
	// length is the minimum duration of the fault.
	length time.Duration
}

// faults returns the faults. long is how long all members of etcd are down. Unless thorough is
// true, each kind of network fault occurs once.
func (w *world) faults(long time.Duration, thorough bool) []fault {
	var leader int
	all := func(do func(*node)) func() { return func() { w.each(do) } }
	second := w.nodes[1:2]
	faults := []fault{
		{name: "the leader moves", begin: w.etcd.MoveLeader, end: func() {}, quiet: thorough, busy: true},
		{
			name: "the leader is killed", quiet: true, busy: true,
			begin: func() { leader = w.leader(); w.etcd.Members[leader].Kill() }, end: func() { w.etcd.Members[leader].Start() },
		},
		{name: "all members are down", begin: w.etcd.Kill, end: w.etcd.Start, lost: w.nodes, length: long, quiet: true}, // without members, the test can't change services
		{name: "etcd is cut off", begin: all((*node).cut), end: all((*node).heal), lost: w.nodes, length: long / 3, quiet: thorough, busy: true},
		{name: "the network swallows everything", begin: all((*node).freeze), end: all((*node).heal), length: long / 3, quiet: true, busy: thorough},
	}
	if thorough {
		faults = append(faults, fault{
			name: "one node is cut off", begin: second[0].cut, end: second[0].heal, lost: second, quiet: true, busy: true,
		})
	}
	return append(faults, fault{ // time jumps for leases and streams, as when a virtual machine is migrated
		name: "vipd stands still", length: long / 3, quiet: true, busy: thorough,
		begin: all(func(n *node) { n.signal(syscall.SIGSTOP) }), end: all(func(n *node) { n.signal(syscall.SIGCONT) }),
	})
}

func (n *node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.vipd.Process.Signal(s); err != nil {
		n.t.Fatalf("%s: %v", n.name, err)
	}
}

// leader returns the index of the leading member.
func (w *world) leader() (leader int) {
	w.t.Helper()
	wait.For(w.t, patience, "a leader", func() bool {
		for i, endpoint := range w.etcd.Endpoints() {
			ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Second)
			status, err := w.client.Status(ctx, endpoint)
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// survives causes a fault up to twice. During the first fault, nothing changes, and no vipd may
// write to the kernel. During the second fault, services change and the changes are compacted.
// Afterwards all nodes must have the same state.
func (w *world) survives(f fault, l *loop) {
	w.t.Helper()
	began, connections := time.Now(), l.total()
	defer func() {
		w.t.Logf("%s: %s, %d connections", f.name, time.Since(began).Round(time.Millisecond), l.total()-connections)
	}()
	if f.quiet {
		before := map[*node]written{}
		w.each(func(n *node) {
			n.drained()
			before[n] = n.written()
		})
		w.during(f, l, func() {})
		w.waitForRevision(w.touch())
		w.unwritten(before, f.name)
	}
	if f.busy {
		var last int64
		var to int
		w.during(f, l, func() { last, to = w.change() })
		w.waitForRevision(last)
		w.each(func(n *node) { n.meets(fmt.Sprint("e", to), time.Now()) })
		w.equal(f.name)
	}
}

// written is a snapshot that shows whether a vipd has written to the kernel since.
type written struct {
	changes float64 // number of changes that vipd has counted
	kernel  string
}

func (n *node) written() written {
	n.t.Helper()
	return written{n.metric("vipd_sync_changes_total") + n.metric("vipd_drift_repairs_total"), n.kernel()}
}

// kernel returns the state of the node's kernel: addresses, sets, and rules with their handles. A
// rule that is written again gets another handle.
func (n *node) kernel() string {
	n.t.Helper()
	return n.ns.Exec("nft", "--handle", "--stateless", "list", "ruleset") + n.ns.Exec("ipset", "save") + n.ns.Exec("ip", "address")
}

var handles = regexp.MustCompile(` # handle \d+`)

// unwritten checks that no node has written to the kernel since the snapshots in since.
func (w *world) unwritten(since map[*node]written, what string) {
	w.t.Helper()
	w.each(func(n *node) {
		if got := n.written(); got != since[n] {
			w.t.Errorf("%s: %s wrote to the kernel although nothing changed: it counted %g changes; state before =\n%s\nafterwards =\n%s",
				what, n.name, got.changes-since[n].changes, since[n].kernel, got.kernel)
		}
	})
}

// during causes a fault, calls do, and ends the fault once its minimum duration has passed. Traffic
// must continue during the fault and after it.
func (w *world) during(f fault, l *loop, do func()) {
	w.t.Helper()
	began := time.Now()
	f.begin()
	for _, n := range f.lost {
		n.await("etcd to be lost: "+f.name, func(s status) bool { return !s.Store.Connected && s.Store.Error != "" && s.Ready })
	}
	do()
	l.waitForMore(20)
	if left := f.length - time.Since(began); left > 0 {
		time.Sleep(left) // the remaining duration of the fault
	}
	f.end()
	l.waitForMore(20)
}

// touch writes an unchanged endpoint, which changes only the revision.
func (w *world) touch() (revision int64) {
	w.t.Helper()
	return w.endpoint("web", "a", 1)
}

// change changes both services without interrupting "web", compacts etcd, and makes another change.
// It returns the last revision, and the new server of the service "move".
func (w *world) change() (revision int64, to int) {
	w.t.Helper()
	to = w.next()
	w.put("/endpoints/web/c", fmt.Sprintf(`{"address":%q,"weight":%d}`, server(4), w.moved))
	w.endpoint("move", "a", 7-to)
	w.put("/services/extra", fmt.Sprintf(`{"vips":["10.96.0.12"],"ports":[{"port":%d}],"drain_timeout":"1s","endpoints":[{"address":%q}]}`, 1000+w.moved, server(4)))
	w.etcd.Compact()
	return w.endpoint("move", "a", to), to
}

// waitForRevision waits until the state of etcd at a revision is in effect on every node.
func (w *world) waitForRevision(revision int64) {
	w.t.Helper()
	w.each(func(n *node) { n.applies(revision) })
}

// equal waits until every node reports the same services, endpoints and frontends. Nodes may differ
// until they have no draining endpoints.
func (w *world) equal(after string) {
	w.t.Helper()
	for _, what := range []string{"services", "endpoints", "frontends"} {
		var states []any
		defer func() {
			if w.t.Failed() {
				for i, s := range states {
					text, _ := json.MarshalIndent(s, "", " ")
					w.t.Logf("%s of %s: %s", what, w.nodes[i].name, text)
				}
			}
		}()
		wait.For(w.t, patience, fmt.Sprintf("the same %s everywhere after: %s", what, after), func() bool {
			states = nil
			w.each(func(n *node) { states = append(states, n.state(what)) })
			return states[0] != nil && !slices.ContainsFunc(states, func(s any) bool { return !reflect.DeepEqual(s, states[0]) })
		})
	}
}

// drained waits until no endpoint drains, and until vipd has saved that.
func (n *node) drained() {
	n.t.Helper()
	wait.For(n.t, patience, n.name+": all drains to end", func() bool {
		out, err := n.ctl("get", "frontends", "-o", "json")
		var frontends []struct {
			State    string
			Backends []struct{ State string }
		}
		if err != nil || json.Unmarshal([]byte(out), &frontends) != nil {
			return false
		}
		for _, f := range frontends {
			if f.State != "applied" {
				return false
			}
			for _, b := range f.Backends {
				if b.State != "active" {
					return false
				}
			}
		}
		return len(frontends) > 0
	})
}

// state returns the output of vipctl get, without the node's counts.
func (n *node) state(what string) (state any) {
	n.t.Helper()
	out, err := n.ctl("get", what, "-o", "json")
	if err != nil {
		return nil
	}
	if err := json.Unmarshal([]byte(out), &state); err != nil {
		n.t.Fatalf("%s: get %s: %v\n%s", n.name, what, err, out)
	}
	return uncounted(state)
}

func uncounted(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if slices.Contains([]string{"connections", "active", "bytes_in", "bytes_out", "until"}, key) {
				delete(v, key)
				continue
			}
			v[key] = uncounted(value)
		}
	case []any:
		for i := range v {
			v[i] = uncounted(v[i])
		}
	}
	return v
}

// restartAll restarts every vipd while etcd is down. Each must serve etcd's last state, and write
// nothing to the kernel when etcd is up again. In iptables mode traffic must never stop.
func (w *world) restartAll(mode string, l *loop) {
	w.t.Helper()
	w.etcd.Kill()
	revisions, rules, before := map[*node]int64{}, map[*node]string{}, map[*node]written{}
	w.each(func(n *node) {
		revisions[n] = n.await("etcd to be lost", func(s status) bool { return !s.Store.Connected }).Store.Revision
		n.drained()
		rules[n] = n.kernel()
	})
	if mode == "userspace" { // userspace mode does not serve while vipd is stopped
		l.stop()
	}
	w.each((*node).stop)
	w.each(func(n *node) { n.start(mode) })
	w.each(func(n *node) {
		s := n.await("vipd to serve without etcd", func(s status) bool { return s.Ready })
		if s.Store.Connected || s.Store.Revision != revisions[n] || !strings.Contains(s.Store.Error, "saved in") {
			w.t.Errorf("store of %s, started without etcd = %+v; want revision %d", n.name, s.Store, revisions[n])
		}
		n.drained()
		if got := n.kernel(); mode == "iptables" && handles.ReplaceAllString(got, "") != handles.ReplaceAllString(rules[n], "") {
			w.t.Errorf("%s, started without etcd, has other rules, sets or addresses; before =\n%s\nafterwards =\n%s", n.name, rules[n], got)
		}
		before[n] = n.written()
	})
	if mode == "userspace" {
		l = w.clients()
	}
	l.waitForMore(20)
	w.etcd.Start()
	w.waitForRevision(w.touch())
	w.unwritten(before, "etcd came back after a restart")
	w.equal("a restart without etcd")
	l.stop()
}
