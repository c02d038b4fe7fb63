package daemon_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/store/etcd/definitions"
	"vipd/test/wait"
)

// TestFleetChecksSteer starts a daemon in a fleet that shares checks. From its first state on, the
// daemon must use the fleet's verdicts. It must publish its own votes, and must check alone after
// the other nodes have left.
func TestFleetChecksSteer(t *testing.T) {
	server(t, "127.44.1.1:9001", "one")
	two := serverUntil(t, "127.44.1.1:9002", "two")
	m := joinFleet(t, "")
	client := m.etcd.Client()
	put := func(key, text string) {
		t.Helper()
		wait.For(t, wait.Patience, "etcd to accept "+key, func() bool { // etcd may still be starting
			_, err := client.Put(t.Context(), "/vipd"+key, text)
			return err == nil
		})
	}
	for _, n := range []string{"n2", "n3"} {
		put("/health/"+n+"/live", `{"version":1}`)
		put("/health/"+n+"/web/127.44.1.1:9001", `{"version":1,"verdict":"up","since":"2026-01-31T12:00:00Z"}`)
		put("/health/"+n+"/web/127.44.1.1:9002", `{"version":1,"verdict":"down","since":"2026-01-31T12:00:00Z","cause":"no answer"}`)
	}
	put("/health/n3/web/127.44.1.1:9002", `{"version":1,"verdict":"down","since":"2026-01-31T11:00:00Z","cause":"connection refused"}`)
	_, err := m.writer.Apply(t.Context(), definitions.Change{Name: "web", Base: definitions.Any, Fields: map[string]any{
		"vips": []any{"127.44.0.1"}, "ports": []any{map[string]any{"port": int64(8080)}},
		"endpoints": []any{map[string]any{"address": "127.44.1.1", "port": int64(9001)}, map[string]any{"address": "127.44.1.1", "port": int64(9002)}},
		"health":    map[string]any{"type": "tcp", "interval": "500ms", "timeout": "400ms", "rise": int64(2), "fall": int64(2), "from": "fleet"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	if got := m.endpoints(); got != "127.44.1.1:9001:active/1 127.44.1.1:9002:down/0" {
		t.Errorf("initial endpoints = %s, want the fleet's verdicts", got)
	}
	wait.For(t, 20*time.Second, "the node to publish its votes", func() bool {
		answer, err := client.Get(t.Context(), "/vipd/health/n1/", clientv3.WithPrefix())
		text := ""
		if err == nil {
			for _, kv := range answer.Kvs {
				text += fmt.Sprintf("%s %s %v\n", kv.Key, kv.Value, kv.Lease != 0)
			}
		}
		return len(answer.Kvs) == 3 && strings.Count(text, `"verdict":"up"`) == 2 && strings.Count(text, " true\n") == 3
	})
	if got := m.endpoints(); got != "127.44.1.1:9001:active/1 127.44.1.1:9002:down/0" {
		t.Errorf("after the outvoted check: endpoints = %s, want the fleet's verdicts", got)
	}
	var c *api.Check
	wait.For(t, 20*time.Second, "the node to read its own vote", func() bool { c = m.check("127.44.1.1:9002"); return len(c.Fleet.Votes) == 3 })
	if c.LastOutcome != "failed" || c.LastText != "2 of 3 nodes: connection refused (n3), no answer (n2); n1 reports up: connected" ||
		c.Since.Format(time.RFC3339) != "2026-01-31T12:00:00Z" || c.Next.IsZero() || c.Fleet.Alone || len(c.Fleet.Checkers) != 3 || c.Fleet.Votes["n1"].Verdict != "up" {
		t.Errorf("fleet's check = %+v, %+v; want the votes of three nodes", c, c.Fleet)
	}
	for range 4 {
		if got := ask("127.44.0.1:8080"); got != "one" {
			t.Errorf("answer = %q, want \"one\", because the fleet reports the other endpoint down", got)
		}
	}
	m.waitForNoProblems()
	put("/health/n3/web/127.44.1.1:9002", `{"version":1,"verdict":"up","since":"2026-01-31T12:30:00Z"}`)
	states := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, want, func() bool { return m.endpoints() == want })
	}
	states("127.44.1.1:9001:active/1 127.44.1.1:9002:active/1")
	put("/health/n3/web/127.44.1.1:9002", `{"version":1,"verdict":"down","since":"2026-01-31T12:40:00Z"}`)
	states("127.44.1.1:9001:active/1 127.44.1.1:9002:down/0")
	if _, err := client.Delete(t.Context(), "/vipd/health/n", clientv3.WithPrefix()); err != nil { // also deletes n1's votes, and n1 then writes them again
		t.Fatal(err)
	}
	states("127.44.1.1:9001:active/1 127.44.1.1:9002:active/1")
	two()
	states("127.44.1.1:9001:active/1 127.44.1.1:9002:down/0")
	m.etcd.Kill()
	m.stop()
	m.start()
	if c, got := m.check("127.44.1.1:9002"), m.endpoints(); got != "127.44.1.1:9001:active/1 127.44.1.1:9002:down/0" || !c.Fleet.Alone {
		t.Errorf("after a restart without etcd: endpoints = %s, check = %+v; want the last verdicts", got, c)
	}
}

// check returns an endpoint's check as the API shows it.
func (m *fleetNode) check(address string) *api.Check {
	m.t.Helper()
	all := m.list()
	i := slices.IndexFunc(all, func(e api.Endpoint) bool { return e.Address == address && e.Check != nil && e.Check.Fleet != nil })
	if i < 0 {
		m.t.Fatalf("endpoint %s has no check by the fleet; endpoints = %+v", address, all)
	}
	return all[i].Check
}

// countChecks defines a service whose only endpoint is checked at an interval. The function count
// returns how often it has been checked.
func (m *fleetNode) countChecks(name balancer.Name, vip string, interval time.Duration) (count func() int64) {
	m.t.Helper()
	l, err := net.Listen("tcp", "127.44.1.4:0")
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = l.Close() })
	var n atomic.Int64
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			n.Add(1)
			_ = c.Close()
		}
	}()
	_, err = m.writer.Apply(m.t.Context(), definitions.Change{Name: name, Base: definitions.Any, Fields: map[string]any{
		"vips": []any{vip}, "ports": []any{map[string]any{"port": int64(8080)}},
		"endpoints": []any{map[string]any{"address": "127.44.1.4", "port": int64(l.Addr().(*net.TCPAddr).Port)}},
		"health":    map[string]any{"type": "tcp", "interval": interval.String(), "timeout": "150ms"},
	}})
	if err != nil {
		m.t.Fatal(err)
	}
	return n.Load
}

// TestFleetRunsNoPrograms configures a node that may not run programs for services in etcd. This
// node must use other nodes' verdicts. It must not run a program itself, even on request or if it
// is the only node.
func TestFleetRunsNoPrograms(t *testing.T) {
	m := joinFleet(t, "")
	ran := filepath.Join(t.TempDir(), "ran")
	_, err := m.writer.Apply(t.Context(), definitions.Change{Name: "web", Base: definitions.Any, Fields: map[string]any{
		"vips": []any{"127.44.0.3"}, "ports": []any{map[string]any{"port": int64(8080)}},
		"endpoints": []any{map[string]any{"address": "127.44.1.3", "port": int64(9001)}},
		"health":    map[string]any{"type": "exec", "command": []any{"/bin/touch", ran}, "interval": "200ms", "timeout": "150ms", "from": "fleet"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	checked := m.countChecks("beat", "127.44.0.4", 200*time.Millisecond)
	m.start()
	state := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, want, func() bool { return strings.Contains(m.endpoints(), want) })
	}
	state("127.44.1.3:9001:active/1")
	wait.For(t, 20*time.Second, "the problem that no node checks", func() bool {
		return strings.Contains(m.problems(), "no node in the fleet has that setting: these endpoints are not checked")
	})
	for key, text := range map[string]string{"n2/live": `{"version":1,"exec":true}`, "n2/web/127.44.1.3:9001": `{"version":1,"verdict":"down","since":"2026-01-31T12:00:00Z"}`} {
		if _, err := m.etcd.Client().Put(t.Context(), "/vipd/health/"+key, text); err != nil {
			t.Fatal(err)
		}
	}
	state("127.44.1.3:9001:down/0")
	if p := m.problems(); strings.Contains(p, "health.type") || !strings.Contains(p, "all endpoints fail their checks") {
		t.Errorf("problems = %s, want only the problem that all endpoints fail", p) // that only other nodes run the check is not a problem
	}
	if r, err := m.client.Check(t.Context(), api.CheckRequest{Service: "web", Address: "127.44.1.3"}); err == nil || !strings.Contains(err.Error(), "service web is in etcd, and services from etcd may not run programs on this host: set health.allow_exec = true in this host's configuration") {
		t.Errorf("CheckNow of an exec check = %+v, %v, want an error", r, err)
	}
	m.etcd.Kill()
	wait.For(t, 30*time.Second, "the node to be alone", func() bool { return m.check("127.44.1.3:9001").Fleet.Alone })
	before := checked()
	wait.For(t, 30*time.Second, "five intervals", func() bool { return checked() >= before+5 })
	state("127.44.1.3:9001:down/0")
	if _, err := os.Stat(ran); err == nil {
		t.Error("program ran = true, want false")
	}
}
