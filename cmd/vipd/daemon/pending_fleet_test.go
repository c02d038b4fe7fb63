package daemon_test

import (
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/store/etcd/schema"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestPendingFleet makes a change pending on one of two nodes. Only that node must serve it, also
// after a restart without etcd. At the deadline, it must revert it without etcd.
func TestPendingFleet(t *testing.T) {
	a := joinFleet(t, "")
	b := joinVia(t, a.etcd, a.etcd.Endpoints(), "")
	program.Save(t, b.file(), strings.Replace(header, `node = "n1"`, `node = "n2"`, 1)+fleetHeader(a.etcd.Endpoints()))
	first := a.apply("web", "127.41.0.9", "127.41.1.9:9001")
	a.start()
	b.start()
	serves := func(when string, m *member, endpoint string, pending int) {
		t.Helper()
		wait.For(t, 0, when+": "+endpoint+" on "+m.status().Node, func() bool {
			all := m.list()
			return len(all) == 1 && all[0].Address == endpoint && len(m.status().Pending) == pending
		})
	}
	serves("at first", a, "127.41.1.9", 0)
	serves("at first", b, "127.41.1.9", 0)
	change := func(within time.Duration, on ...string) {
		t.Helper()
		now := time.Now().UTC()
		p := &schema.Pending{By: "ana", Since: now, Until: now.Add(within), On: on, Services: map[balancer.Name]*schema.PendingService{"web": {Base: first.Revision, Fields: map[string]any{
			"vips": []any{"127.41.0.9"}, "ports": []any{map[string]any{"port": int64(8080)}}, "endpoints": []any{map[string]any{"address": "127.41.1.10", "port": int64(9001)}},
		}}}}
		if _, err := a.writer.Try(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	change(time.Hour, "n2")
	serves("pending", b, "127.41.1.10", 1)
	serves("pending", a, "127.41.1.9", 0)
	p, revision, err := a.writer.Pending(t.Context(), time.Now())
	if err == nil {
		err = a.writer.EndPending(t.Context(), p, revision, "bob", false)
	}
	if err != nil {
		t.Fatal(err)
	}
	serves("aborted", b, "127.41.1.9", 0)

	const within = 20 * time.Second
	change(within)
	serves("pending everywhere", a, "127.41.1.10", 1)
	serves("pending everywhere", b, "127.41.1.10", 1)
	b.stop() // saves the state
	for _, e := range a.etcd.Members {
		e.Stop()
	}
	b.start()
	deadline := time.Now().Add(within)
	serves("after the deadline without etcd", a, "127.41.1.9", 0)
	serves("after the deadline without etcd", b, "127.41.1.9", 0)
	if late := time.Since(deadline); late > wait.Bound(within) {
		t.Errorf("the nodes reverted %s late", late)
	}
	text := eventTexts(t, a.node, "pending")
	for _, want := range []string{"a change of /vipd/pending is pending: ", "the pending change of /vipd/pending is reverted: it was not confirmed by "} {
		if !strings.Contains(text, want) {
			t.Errorf("events lack %q:\n%s", want, text)
		}
	}
}

// eventTexts returns the texts of a kind's events in the history.
func eventTexts(t *testing.T, n *node, kind string) string {
	var lines strings.Builder
	err := n.client.Events(t.Context(), api.EventsQuery{Kind: kind}, func(p api.EventPage) error {
		for _, e := range p.Events {
			lines.WriteString(e.Text + ": " + e.Cause + "\n")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return lines.String()
}
