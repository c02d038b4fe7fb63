package etcd

import (
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// TestNumbers: what a watch tells counts for its own scope, whoever numbers the watches, and in whatever order they are
// confirmed.
func TestNumbers(t *testing.T) {
	for name, ids := range map[string][]int64{"member": {1, 3, 4}, "proxy": {0, 1, 2}} {
		keys, err := NewKeys("/vipd")
		if err != nil {
			t.Fatal(err)
		}
		messages := make(chan message, 10)
		l := newLink(Config{}, keys, keys.scopes(""), usualTiming(), nil, messages)
		s := &stream{link: l, order: []int{0, 2, 3}, created: -3, began: l.timing.now()}
		l.scopes[1].denied = true
		for i := range l.scopes {
			l.scopes[i].next = 10
		}
		for _, i := range []int{2, 0, 1} {
			answer := &etcdserverpb.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: 10}, WatchId: ids[i], Created: true}
			if err := s.take(t.Context(), answer); err != nil {
				t.Fatal(err)
			}
		}
		put := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte("/vipd/overrides/web/10.0.0.1"), CreateRevision: 20, ModRevision: 20}}
		for _, answer := range []*etcdserverpb.WatchResponse{
			{Header: &etcdserverpb.ResponseHeader{Revision: 20}, WatchId: ids[1], Events: []*mvccpb.Event{put}},
			{Header: &etcdserverpb.ResponseHeader{Revision: 30}, WatchId: ids[2]}, // progress
		} {
			if err := s.take(t.Context(), answer); err != nil {
				t.Fatal(err)
			}
		}
		got := [4]int64{}
		for i := range got {
			got[i] = l.scopes[i].next
		}
		if want := [4]int64{10, 10, 21, 31}; got != want || !l.steady {
			t.Errorf("%s: the watches go on at %v (steady %t), want %v", name, got, l.steady, want)
		}
	}
}
