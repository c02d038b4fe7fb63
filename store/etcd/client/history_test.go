package client

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/test/etcdkit"
)

// TestHistory calls Verify after etcd has continued, was compacted, was restored or was wiped.
// Verify must report another history only for a restored or wiped etcd. A restored etcd has the
// same cluster ID, and may have written more revisions than it lost.
func TestHistory(t *testing.T) {
	t.Parallel()
	type step func(*testing.T, *etcdkit.Cluster, *clientv3.Client)
	put := func(key, value string) step {
		return func(t *testing.T, _ *etcdkit.Cluster, c *clientv3.Client) {
			if _, err := c.Put(t.Context(), key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(t *testing.T, _ *etcdkit.Cluster, c *clientv3.Client) {
		if _, err := c.Delete(t.Context(), "marker"); err != nil {
			t.Fatal(err)
		}
	}
	many := func(key string) step {
		return func(t *testing.T, c *etcdkit.Cluster, client *clientv3.Client) {
			for i := range 10 {
				put(key, fmt.Sprint(i))(t, c, client)
			}
		}
	}
	compact := func(_ *testing.T, c *etcdkit.Cluster, _ *clientv3.Client) { c.Compact() }
	for name, test := range map[string]struct {
		seen     []step // changes that the History has seen after the marker was written
		restored bool   // reports whether etcd is restored from a backup that lacks the marker's last value
		wiped    bool
		then     []step
		ahead    int64 // number of revisions that are known, but whose events were not received
		want     error
		unsure   bool // reports whether the compared revision was compacted
	}{
		"went on":                      {then: []step{put("other", "x"), put("marker", "y")}},
		"marker changed, not seen":     {then: []step{put("marker", "y")}, ahead: 1},
		"marker deleted":               {seen: []step{remove}, then: []step{put("other", "x")}},
		"compacted":                    {then: []step{put("other", "x"), compact}, unsure: true},
		"marker changed, compacted":    {then: []step{put("marker", "y"), compact}, unsure: true},
		"marker deleted, compacted":    {seen: []step{remove}, then: []step{put("other", "x"), compact}, unsure: true},
		"restored":                     {restored: true, want: ErrHistoryChanged},
		"restored, written":            {restored: true, then: []step{many("other")}, want: ErrHistoryChanged},
		"restored, marker written":     {restored: true, then: []step{many("marker")}, want: ErrHistoryChanged},
		"restored, marker deleted":     {seen: []step{remove}, restored: true, then: []step{many("other")}, want: ErrHistoryChanged},
		"restored, written, compacted": {restored: true, then: []step{many("other"), compact}, want: ErrHistoryChanged, unsure: true},
		"wiped":                        {wiped: true, then: []step{many("marker"), many("marker")}, want: ErrHistoryChanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := etcdkit.Start(t, etcdkit.Options{})
			m, client := cluster.Members[0], cluster.Client()
			put("other", "")(t, cluster, client)
			put("marker", "first")(t, cluster, client)
			backup := ""
			if test.restored {
				m.Stop()
				backup = m.Backup()
				m.Start()
			}
			watch := client.Watch(t.Context(), "marker", clientv3.WithRev(3))
			put("marker", "last")(t, cluster, client)
			for _, s := range test.seen {
				s(t, cluster, client)
			}
			var h History
			for want := 2 + len(test.seen); want > 0; {
				answer := <-watch
				h.Cluster = answer.Header.ClusterId
				h.Follow(answer.Header.Revision, answer.Events)
				want -= len(answer.Events)
			}
			m.Stop()
			if test.wiped {
				m.Wipe()
			} else if test.restored {
				m.Restore(backup)
			}
			m.Start()
			client = cluster.Client()
			for _, s := range test.then {
				s(t, cluster, client)
			}
			h.Revision += test.ahead
			kv := etcdserverpb.NewKVClient(client.ActiveConnection())
			ask := func(ctx context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
				return kv.Range(ctx, r)
			}
			if compacted, err := h.Verify(t.Context(), "x", ask); !errors.Is(err, test.want) || compacted != test.unsure {
				t.Errorf("Verify = compacted %t, %v, want %t, %v", compacted, err, test.unsure, test.want)
			}
		})
	}
}
