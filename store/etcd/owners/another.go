package owners

import (
	"bytes"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrAnother says that etcd has another history than before: it was restored from a backup, or is a new one. Nothing that was told
// holds.
var ErrAnother = errors.New("etcd was wiped, or restored from a backup")

// history is what etcd has told: of which cluster, how far, and the last of each key.
type history struct {
	cluster  uint64
	revision int64
	last     map[string]*mvccpb.KeyValue
}

// load takes in everything that there is. The error is ErrAnother. What has written more since it was restored than was lost is found
// by its keys; a restored cluster may have the ID of the one before.
func (h *history) load(now *etcdserverpb.ResponseHeader, all []*mvccpb.KeyValue) error {
	if h.last != nil && (now.ClusterId != h.cluster || now.Revision < h.revision) {
		return ErrAnother
	}
	next := make(map[string]*mvccpb.KeyValue, len(all))
	for _, kv := range all {
		old := h.last[string(kv.Key)]
		if old != nil && (kv.ModRevision < old.ModRevision || kv.ModRevision == old.ModRevision && !bytes.Equal(kv.Value, old.Value)) {
			return ErrAnother
		}
		next[string(kv.Key)] = kv
	}
	*h = history{now.ClusterId, now.Revision, next}
	return nil
}

// follow takes changes in.
func (h *history) follow(answer clientv3.WatchResponse) {
	h.revision = max(h.revision, answer.Header.Revision)
	for _, e := range answer.Events {
		if e.Type == mvccpb.DELETE {
			delete(h.last, string(e.Kv.Key))
		} else {
			h.last[string(e.Kv.Key)] = e.Kv
		}
	}
}
