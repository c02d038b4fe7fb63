package owners

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// TestSeenDisagrees follows two keys up to revision 7, which deletes the second key, and compares
// later reads of the keys. Only a read that can't follow in the same history may disagree.
func TestSeenDisagrees(t *testing.T) {
	kv := func(key, value string, revision int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: revision}
	}
	for name, test := range map[string]struct {
		keys []*mvccpb.KeyValue
		want bool
	}{
		"same":                      {keys: []*mvccpb.KeyValue{kv("a", "1", 5)}},
		"deleted":                   {},
		"written since":             {keys: []*mvccpb.KeyValue{kv("a", "2", 8), kv("b", "3", 9), kv("c", "4", 10)}},
		"older":                     {keys: []*mvccpb.KeyValue{kv("a", "0", 4)}, want: true},
		"other value":               {keys: []*mvccpb.KeyValue{kv("a", "2", 5)}, want: true},
		"other revision":            {keys: []*mvccpb.KeyValue{kv("a", "1", 6)}, want: true},
		"unknown key":               {keys: []*mvccpb.KeyValue{kv("a", "1", 5), kv("c", "1", 3)}, want: true},
		"deletion is not contained": {keys: []*mvccpb.KeyValue{kv("a", "1", 5), kv("b", "1", 6)}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			var s seen
			if s.disagrees(test.keys) {
				t.Error("before anything was seen: disagrees = true, want false")
			}
			s.read([]*mvccpb.KeyValue{kv("a", "0", 4)}, 4)
			s.follow([]*mvccpb.Event{{Kv: kv("a", "1", 5)}, {Kv: kv("b", "1", 6)}})
			s.follow([]*mvccpb.Event{{Type: mvccpb.DELETE, Kv: kv("b", "", 7)}})
			if got := s.disagrees(test.keys); got != test.want {
				t.Errorf("disagrees = %t, want %t", got, test.want)
			}
		})
	}
}
