package owners

import (
	"bytes"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// seen holds the last state of each key that was read or followed. It complements the marker of
// [client.History], because etcd can't return its history after a compaction. The marker may by
// then have been written again in another history, because this host writes its own key after each
// outage.
type seen struct {
	keys map[string]*mvccpb.KeyValue
	// revision is the revision of the last received events. The revision in the header of an answer
	// may be higher.
	revision int64
}

// read replaces the state with all keys at a revision.
func (s *seen) read(keys []*mvccpb.KeyValue, revision int64) {
	*s = seen{make(map[string]*mvccpb.KeyValue, len(keys)), revision}
	for _, kv := range keys {
		s.keys[string(kv.Key)] = kv
	}
}

// follow applies events.
func (s *seen) follow(events []*mvccpb.Event) {
	for _, e := range events {
		s.revision = e.Kv.ModRevision
		if e.Type == mvccpb.DELETE {
			delete(s.keys, string(e.Kv.Key))
		} else {
			s.keys[string(e.Kv.Key)] = e.Kv
		}
	}
}

// disagrees reports whether a later read belongs to another history. It does if a key is older than
// before, or if it differs at a revision that was followed.
func (s *seen) disagrees(keys []*mvccpb.KeyValue) bool {
	for _, kv := range keys {
		was := s.keys[string(kv.Key)]
		switch {
		case was != nil && kv.ModRevision == was.ModRevision:
			if !bytes.Equal(kv.Value, was.Value) {
				return true
			}
		case kv.ModRevision <= s.revision, was != nil && kv.ModRevision < was.ModRevision:
			return true
		}
	}
	return false
}
