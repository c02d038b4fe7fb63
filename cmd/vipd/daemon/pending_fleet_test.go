package daemon_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/store/etcd/schema"
	"vipd/test/wait"
)

// TestPendingFleet starts a pending change for another node, and then one for this node. Only the
// second change may apply to this node, even after a restart without etcd. At the deadline, the
// node must revert this change without etcd.
func TestPendingFleet(t *testing.T) {
	a := joinFleet(t, "")
	first := a.apply("web", "127.41.0.9", "127.41.1.9:9001")
	a.start()
	serves := func(when, endpoint string, pending int) {
		t.Helper()
		wait.For(t, 0, when+": "+endpoint, func() bool {
			active := slices.DeleteFunc(a.list(), func(e api.Endpoint) bool { return e.State != balancer.Active }) // ignores draining endpoints
			return len(active) == 1 && active[0].Address == endpoint+":9001" && len(a.status().Pending) == pending
		})
	}
	serves("at first", "127.41.1.9", 0)
	change := func(within time.Duration, on ...string) (revision int64) {
		t.Helper()
		now := time.Now().UTC()
		p := &schema.Pending{By: "ana", Since: now, Until: now.Add(within), On: on, Services: map[balancer.Name]*schema.PendingService{"web": {Base: first.Revision, Fields: map[string]any{
			"vips": []any{"127.41.0.9"}, "ports": []any{map[string]any{"port": int64(8080)}}, "endpoints": []any{map[string]any{"address": "127.41.1.10", "port": int64(9001)}},
		}}}}
		revision, err := a.writer.Try(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	abort := func() {
		t.Helper()
		p, revision, err := a.writer.Pending(t.Context(), time.Now())
		if err == nil {
			err = a.writer.EndPending(t.Context(), p, revision, "bob", false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := change(time.Hour, "n2")
	wait.For(t, 0, "the change of another node to be read", func() bool { return a.status().Sync.Applied >= elsewhere })
	serves("pending on another node", "127.41.1.9", 0)
	abort()
	change(time.Hour, "n2", "n1")
	serves("pending here", "127.41.1.10", 1)
	abort()
	serves("aborted", "127.41.1.9", 0)

	const within = 30 * time.Second
	change(within)
	serves("pending everywhere", "127.41.1.10", 1)
	a.stop() // vipd saves its state when it stops
	for _, e := range a.etcd.Members {
		e.Stop()
	}
	a.start()
	serves("after the deadline without etcd", "127.41.1.9", 0)
	text := eventTexts(t, a.node, "pending")
	for _, want := range []string{"a change to /vipd/pending is pending: ", "the pending change to /vipd/pending is reverted: it was not confirmed by "} {
		if !strings.Contains(text, want) {
			t.Errorf("no event has the text %q; events =\n%s", want, text)
		}
	}
}

// eventTexts returns the text of each event of a kind in the history.
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
