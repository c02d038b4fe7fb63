package daemon_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// fleetNode is a node of a fleet. The test also runs etcd.
type fleetNode struct {
	*node
	etcd   *etcdkit.Cluster
	writer *etcd.Store
}

// joinFleet starts etcd, and returns a node that follows it. The argument services defines services
// in the node's own file. The caller starts the node.
func joinFleet(t *testing.T, services string) *fleetNode {
	t.Helper()
	c := etcdkit.Start(t, etcdkit.Options{})
	return joinVia(t, c, c.Endpoints(), services)
}

func joinVia(t *testing.T, c *etcdkit.Cluster, endpoints []string, services string) *fleetNode {
	t.Helper()
	w, err := etcd.NewStore(client.Config{Endpoints: c.Endpoints(), Prefix: "/vipd"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	m := &fleetNode{node: &node{t: t, dir: t.TempDir()}, etcd: c, writer: w}
	m.write(fleetHeader(endpoints) + services)
	t.Cleanup(func() {
		if m.stop != nil {
			m.stop()
		}
	})
	return m
}

func fleetHeader(endpoints []string) string {
	return fmt.Sprintf("[store]\nkind = \"etcd\"\n[etcd]\nendpoints = [\"%s\"]\n[addresses]\nallowed = [\"127.0.0.0/8\"]\n", strings.Join(endpoints, `", "`))
}

// apply writes a service with one VIP and one endpoint on this machine.
func (m *fleetNode) apply(name balancer.Name, vip, endpoint string) client.Result {
	m.t.Helper()
	host, port, _ := strings.Cut(endpoint, ":")
	var r client.Result
	var err error
	change := definitions.Change{Name: name, Base: definitions.Any, Fields: map[string]any{
		"vips": []any{vip}, "ports": []any{map[string]any{"port": int64(8080)}},
		"endpoints": []any{map[string]any{"address": host, "port": number(port)}},
	}}
	wait.For(m.t, wait.Patience, "etcd to accept a service", func() bool { // etcd may still be starting
		r, err = m.writer.Apply(m.t.Context(), change)
		return err == nil
	})
	return r
}

func number(text string) (n int64) {
	_, _ = fmt.Sscan(text, &n)
	return n
}

func (m *fleetNode) answers(vip, want string) {
	m.t.Helper()
	wait.For(m.t, 10*time.Second, want+" to answer at "+vip, func() bool { return ask(vip+":8080") == want })
}

// TestFleet defines services in etcd and in the node's file. For a name that is defined in both,
// the definition in the file must be used. All other services must be served.
func TestFleet(t *testing.T) {
	server(t, "127.41.1.1:9001", "shared")
	server(t, "127.41.1.1:9002", "own")
	m := joinFleet(t, "[services.own]\nvips = [\"127.41.0.2\"]\nports = [{ port = 8080 }]\nendpoints = [{ address = \"127.41.1.1\", port = 9002 }]\n")
	m.apply("shared", "127.41.0.1", "127.41.1.1:9001")
	m.start()
	m.answers("127.41.0.1", "shared")
	m.answers("127.41.0.2", "own")
	m.waitForNoProblems()
	if place := m.status().Store.Place; !strings.HasPrefix(place, "/vipd at http://127.") {
		t.Errorf("Store.Place = %q, want etcd at the beginning", place)
	}
	r := m.apply("own", "127.41.0.3", "127.41.1.1:9001")
	wait.For(t, 10*time.Second, "the problem of two services with the same name", func() bool {
		return strings.Contains(m.problems(), "/vipd/services/own: service own: this node's own service of that name (vipd.toml:")
	})
	if got := ask("127.41.0.3:8080"); got == "shared" {
		t.Error("definition of the service = the definition in etcd, want the node's own definition")
	}
	m.answers("127.41.0.2", "own")
	if got := m.events(api.EventsQuery{Kind: "reload"}); len(got) > 0 {
		t.Errorf("reload events after a change in etcd = %+v, want none", got)
	}
	m.write(fleetHeader(m.etcd.Endpoints()) + "[services.other]\nvips = [\"127.41.0.4\"]\nports = [{ port = 8080 }]\n")
	wait.For(t, 10*time.Second, "the event about the changed file", func() bool {
		got := m.events(api.EventsQuery{Kind: "reload"})
		return len(got) == 1 && strings.Contains(got[0].Text, "(+ other; - own)") && got[0].Cause == "a file has changed"
	})
	wait.For(t, 10*time.Second, "the revision to be applied", func() bool { return m.status().Sync.Applied >= r.Revision })
}

// TestFleetAway stops etcd. The last services that vipd read must still be served, even after vipd
// restarts.
func TestFleetAway(t *testing.T) {
	server(t, "127.41.1.2:9001", "one")
	server(t, "127.41.1.2:9002", "two")
	m := joinFleet(t, "")
	m.apply("web", "127.41.0.5", "127.41.1.2:9001")
	m.start()
	m.answers("127.41.0.5", "one")
	for _, e := range m.etcd.Members {
		e.Stop()
	}
	wait.For(t, 20*time.Second, "the outage of etcd to be reported", func() bool { return !m.status().Store.Connected })
	m.answers("127.41.0.5", "one")
	m.wantStoreEvents("etcd is reachable", "etcd is unreachable; serving its last state")
	m.stop()
	m.start()
	m.answers("127.41.0.5", "one")
	if s := m.status().Store; s.Connected || !s.EverRead || !strings.Contains(s.Error, "saved in") {
		t.Errorf("after a restart without etcd: store = %+v, want the state from before the restart", s)
	}
	for _, e := range m.etcd.Members {
		e.Start()
	}
	m.apply("web", "127.41.0.5", "127.41.1.2:9002")
	m.answers("127.41.0.5", "two")
	wait.For(t, 10*time.Second, "etcd to be back", func() bool { return m.status().Store.Connected })
	m.wantStoreEvents("etcd has been unreachable since vipd started; serving the last good state", "etcd is reachable again")
}

// waitForNoProblems waits until no problem is left. On a busy machine, etcd may have answered late.
func (m *fleetNode) waitForNoProblems() {
	m.t.Helper()
	wait.For(m.t, 0, "an end of problems", func() bool { return m.problems() == "" })
}

// wantStoreEvents requires the events in want about etcd. It ignores events about late answers,
// which occur on a busy machine.
func (m *fleetNode) wantStoreEvents(want ...string) {
	m.t.Helper()
	var got []string
	for _, e := range m.events(api.EventsQuery{Kind: "store"}) {
		if !strings.HasPrefix(e.Text, "etcd ") {
			continue
		}
		last := len(got) - 1
		switch again := e.Text == "etcd is reachable again" && last >= 0; {
		case again && got[last] == "etcd is unreachable; serving its last state":
			got = got[:last]
		case again && want[0] == "etcd is reachable" && strings.HasPrefix(got[last], "etcd has been unreachable since vipd started, "):
			got[last] = want[0]
		default:
			got = append(got, e.Text)
		}
	}
	if !slices.Equal(got, want) {
		m.t.Errorf("etcd events in the journal = %q, want %q", got, want)
	}
}

// TestFleetNeverRead starts a node while etcd is not running. The node's own services must be
// served, and the status must show why the services in etcd are not served.
func TestFleetNeverRead(t *testing.T) {
	server(t, "127.41.1.3:9001", "own")
	c := etcdkit.Start(t, etcdkit.Options{})
	for _, e := range c.Members {
		e.Stop()
	}
	m := joinVia(t, c, c.Endpoints(), "[services.own]\nvips = [\"127.41.0.7\"]\nports = [{ port = 8080 }]\nendpoints = [{ address = \"127.41.1.3\", port = 9001 }]\n")
	m.launch()
	wait.For(t, 30*time.Second, "the reason why nothing is served yet", func() bool { return strings.Contains(m.status().Store.Error, "no state was ever read") })
	wait.For(t, 5*time.Second, "the event", func() bool { return len(m.events(api.EventsQuery{Kind: "store"})) > 0 })
	_, body := m.get("/readyz")
	if !strings.Contains(body, "connection refused; no state was ever read") {
		t.Errorf("reason why vipd is not ready = %s, want that no state was ever read", body)
	}
	wait.For(t, 30*time.Second, "the node's own service", func() bool { return ask("127.41.0.7:8080") == "own" })
	if s := m.status(); s.Ready || !strings.Contains(s.Store.Error, "no state was ever read") {
		t.Errorf("ready = %v, %q; want false and that no state was ever read", s.Ready, s.Store.Error)
	}
	m.wantStoreEvents("etcd has been unreachable since vipd started, and there is no last good state")
}

// TestFleetSeesNodes starts a node. The node must publish its status, and apply its configuration
// from etcd.
func TestFleetSeesNodes(t *testing.T) {
	server(t, "127.41.1.4:9001", "one")
	m := joinFleet(t, "")
	m.modes = []modes.Mode{
		spare(config.IPTablesMode, func(dp dataplane.Dataplane) (dataplane.Dataplane, error) { return willing{dp}, nil }), noRoot()[0],
	}
	r := m.apply("web", "127.41.0.9", "127.41.1.4:9001")
	m.start()
	waitForStatus := func(what string, is func(schema.NodeStatus) bool) {
		t.Helper()
		wait.For(t, 20*time.Second, what, func() bool {
			nodes, _, err := m.writer.Nodes(context.Background())
			return err == nil && len(nodes) == 1 && nodes[0].Live != nil && nodes[0].Status != nil && is(*nodes[0].Status)
		})
	}
	waitForStatus("the node's status", func(s schema.NodeStatus) bool {
		return s.Revision >= r.Revision && s.Ready && s.Mode == "userspace" && s.Services == 1 && s.Endpoints == 1 && s.ProblemCount == 0
	})
	set := func(edit func(schema.NodeConfig) schema.NodeConfig) {
		t.Helper()
		m.retry("etcd to accept the node's configuration", func() error { _, err := m.writer.SetNode(t.Context(), "n1", edit); return err })
	}
	set(func(c schema.NodeConfig) schema.NodeConfig { c.Zone, c.By, c.Reason = "z9", "ana", "moved"; return c })
	waitForStatus("the zone", func(s schema.NodeStatus) bool { return s.Zone == "z9" })
	m.answers("127.41.0.9", "one")
	wait.For(t, 10*time.Second, "the zone in the node's own status", func() bool { return m.status().Zone == "z9" })
	set(func(c schema.NodeConfig) schema.NodeConfig { c.Mode, c.By, c.Reason = "iptables", "ben", ""; return c })
	waitForStatus("the mode", func(s schema.NodeStatus) bool {
		return s.Mode == "iptables" && s.Wanted == "iptables" && !s.Fallback && s.Why == "set in etcd by vipctl node set"
	})
	set(func(c schema.NodeConfig) schema.NodeConfig {
		c.Standby, c.By, c.Reason = true, "dora", "new kernel"
		return c
	})
	wait.For(t, 10*time.Second, "the event of the standby", func() bool { return strings.Contains(m.eventsOf(events.Override), "by dora") })
	set(func(c schema.NodeConfig) schema.NodeConfig { c.Standby, c.By, c.Reason = false, "eve", ""; return c })
	wait.For(t, 10*time.Second, "the event of its end", func() bool { return strings.Contains(m.eventsOf(events.Override), "by eve") })
	if _, err := m.etcd.Client().Put(t.Context(), "/vipd/nodes/n1/config", `{"mode": "fast"}`); err != nil {
		t.Fatal(err)
	}
	waitForStatus("the problem", func(s schema.NodeStatus) bool {
		return s.Mode == "iptables" && s.ProblemCount == 1 && strings.Contains(s.Problems[0], "/vipd/nodes/n1/config: mode: ")
	})
	set(func(schema.NodeConfig) schema.NodeConfig { return schema.NodeConfig{By: "cleo", Reason: "done"} })
	waitForStatus("the configuration of the file", func(s schema.NodeStatus) bool {
		return s.Mode == "userspace" && s.Zone == "" && s.ProblemCount == 0 && s.Why == "configured in "+m.file()
	})
	m.answers("127.41.0.9", "one")
	if got, want := m.eventsOf(events.Override), `node: zone set to z9 by ana: moved
node: mode set to iptables by ben
node: put on standby by dora: new kernel
node: standby ended by eve
node: mode iptables removed by cleo: done
node: zone z9 removed by cleo: done`; got != want {
		t.Errorf("journal =\n%s\nwant\n%s", got, want)
	}
	m.stop()
	wait.For(t, 20*time.Second, "the node to be gone", func() bool {
		nodes, _, err := m.writer.Nodes(context.Background())
		return err == nil && len(nodes) == 0
	})
}

// TestFleetFull revokes a node's lease while etcd is full. The node must report that the fleet does
// not see it, and the command that fixes the cause.
func TestFleetFull(t *testing.T) {
	m := joinFleet(t, "")
	m.apply("web", "127.41.0.10", "127.41.1.4:9001")
	m.start()
	client := m.etcd.Client()
	var live *clientv3.GetResponse
	wait.For(t, wait.Patience, "the node to be in etcd", func() bool {
		var err error
		live, err = client.Get(t.Context(), "/vipd/nodes/n1/live")
		return err == nil && len(live.Kvs) == 1
	})
	alarm := func(action etcdserverpb.AlarmRequest_AlarmAction) {
		t.Helper()
		r := &etcdserverpb.AlarmRequest{Action: action, Alarm: etcdserverpb.AlarmType_NOSPACE}
		if _, err := etcdserverpb.NewMaintenanceClient(client.ActiveConnection()).Alarm(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	alarm(etcdserverpb.AlarmRequest_ACTIVATE)
	if _, err := client.Revoke(t.Context(), clientv3.LeaseID(live.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	wait.For(t, wait.Patience, "the problem", func() bool {
		return strings.Contains(m.problems(), "does not see this node: ") && strings.Contains(m.problems(), "database space exceeded; to make etcd writable again, run etcdctl compact")
	})
	alarm(etcdserverpb.AlarmRequest_DEACTIVATE)
	wait.For(t, wait.Patience, "the end of the problem", func() bool { return m.problems() == "" })
}

// TestFleetCountsDrains drains an endpoint. The node must publish the number of its remaining
// connections.
func TestFleetCountsDrains(t *testing.T) {
	l, err := net.Listen("tcp", "127.41.1.5:9001")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // the client's connection stays open
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	m := joinFleet(t, "")
	m.apply("web", "127.41.0.11", "127.41.1.5:9001")
	m.start()
	c, err := net.Dial("tcp", "127.41.0.11:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	yes := true
	target := balancer.Target{Service: "web", Addr: netip.MustParseAddr("127.41.1.5")}
	say := func(o balancer.Override) {
		t.Helper()
		edit := func(old balancer.Override) *balancer.Override {
			return cmp.Or(o.ChangedFrom(old, balancer.Override{}, []*balancer.Endpoint{{Weight: 1}}, false), o.Note(old))
		}
		m.retry("etcd to accept an override", func() error { _, err := m.writer.EditOverride(t.Context(), target, edit); return err })
	}
	say(balancer.Override{Draining: &yes, By: "ana", Reason: "disk"})
	left := func(want uint64) {
		t.Helper()
		wait.For(t, 20*time.Second, fmt.Sprintf("%d connections to be left", want), func() bool {
			nodes, _, err := m.writer.Nodes(context.Background())
			return err == nil && len(nodes) == 1 && nodes[0].Status != nil &&
				slices.Equal(nodes[0].Status.Drains, []schema.NodeDrain{{Service: "web", Address: "127.41.1.5:9001", Active: want}})
		})
	}
	left(1)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	left(0)
	no, five, back := false, 5, balancer.ResetWeight
	for i, step := range []struct {
		say  balancer.Override
		want string
	}{
		{balancer.Override{Draining: &no, By: "ben", Reason: "new disk"}, "undrained by ben: new disk"},
		{balancer.Override{Weight: &five, By: "ana"}, "weight set to 5 by ana"},
		{balancer.Override{Weight: &back, By: "ben"}, "weight 5 removed by ben"},
	} {
		say(step.say)
		wait.For(t, 10*time.Second, "the event "+step.want, func() bool {
			lines := strings.Split(m.eventsOf(events.Override), "\n")
			return len(lines) == i+2 && lines[i+1] == "web 127.41.1.5 "+step.want
		})
	}
	if all, err := m.client.Overrides(t.Context()); err != nil || len(all.Targets) > 0 {
		t.Errorf("overrides = %+v, error = %v, want no overrides and no error", all, err)
	}
}
