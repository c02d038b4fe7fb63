package client

import (
	"testing"
	"vipd/store/etcd/schema"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// TestWatchProgress confirms the watches of a stream in another order than they were requested. An
// event must advance the scope of its key, and a progress message the scope of its watch. Behind a
// proxy, which numbers watches itself, progress messages must be ignored.
func TestWatchProgress(t *testing.T) {
	for name, c := range map[string]struct {
		ids  []int64
		want [4]int64
	}{
		"member": {[]int64{1, 3, 4}, [4]int64{10, 10, 21, 31}},
		"proxy":  {[]int64{0, 1, 2}, [4]int64{10, 10, 21, 10}},
	} {
		keys, err := schema.NewKeys("/vipd")
		if err != nil {
			t.Fatal(err)
		}
		messages := make(chan Message, 10)
		l := NewLink(Config{}, keys, Scopes(keys, ""), UsualTiming(), nil, messages)
		s := &stream{Link: l, created: -3, began: l.timing.Now()}
		l.scopes[1].denied = true
		for i := range l.scopes {
			l.scopes[i].next = 10
		}
		for _, i := range []int{2, 0, 1} {
			answer := &etcdserverpb.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: 10}, WatchId: c.ids[i], Created: true}
			if err := s.process(t.Context(), answer); err != nil {
				t.Fatal(err)
			}
		}
		put := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte("/vipd/overrides/web/10.0.0.1"), CreateRevision: 20, ModRevision: 20}}
		for _, answer := range []*etcdserverpb.WatchResponse{
			{Header: &etcdserverpb.ResponseHeader{Revision: 20}, WatchId: c.ids[1], Events: []*mvccpb.Event{put}},
			{Header: &etcdserverpb.ResponseHeader{Revision: 30}, WatchId: c.ids[2]}, // a progress message
		} {
			if err := s.process(t.Context(), answer); err != nil {
				t.Fatal(err)
			}
		}
		got := [4]int64{}
		for i := range got {
			got[i] = l.scopes[i].next
		}
		if got != c.want || !l.steady {
			t.Errorf("%s: next revisions of the scopes = %v, steady = %t, want %v and true", name, got, l.steady, c.want)
		}
	}
}
