package client

import (
	"bytes"
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// ErrHistoryChanged means that etcd has another history than before. All data from earlier reads is
// invalid.
var ErrHistoryChanged = errors.New("etcd was wiped, or restored from a backup")

// History identifies the part of etcd's history that a client has seen. The zero value is an empty
// history.
type History struct {
	// Cluster is the ID of the cluster. Zero means that it is unknown. A restored cluster may have
	// the same ID as the cluster before it.
	Cluster uint64
	// Revision is the last seen revision.
	Revision int64
	// marker is the last seen write. A restored etcd may have had more writes than it lost, but
	// hardly a write of the same value at the same revision.
	marker *mvccpb.KeyValue
	// changed reports whether the marker's key may have changed between the marker's revision and
	// Revision.
	changed bool
}

// Note records a key that was read.
func (h *History) Note(kv *mvccpb.KeyValue) {
	if h.marker == nil || kv.ModRevision > h.marker.ModRevision {
		h.marker, h.changed = kv, false
	}
}

// NoteLast records a key that was read earlier and may have changed since.
func (h *History) NoteLast(kv *mvccpb.KeyValue) {
	h.Note(kv)
	h.changed = true
}

// Follow records changes up to a revision.
func (h *History) Follow(revision int64, events []*mvccpb.Event) {
	h.Revision = max(h.Revision, revision)
	for _, e := range events {
		switch {
		case e.Type != mvccpb.DELETE:
			h.Note(e.Kv)
		case h.marker != nil && bytes.Equal(e.Kv.Key, h.marker.Key):
			h.changed = true
		}
	}
}

// Verify checks whether etcd still has this history. If not, it returns [ErrAnother]. The result
// compacted is true if the necessary part of the history was compacted. In this case, Verify
// compares the marker's current value.
func (h *History) Verify(ctx context.Context, key string, ask Asker) (compacted bool, err error) {
	request := &etcdserverpb.RangeRequest{Key: []byte(key), Revision: h.Revision}
	if h.marker != nil {
		request.Key = h.marker.Key
		if h.changed {
			request.Revision = h.marker.ModRevision
		}
	}
	answer, err := ask(ctx, request)
	if compacted = Is(err, rpctypes.ErrCompacted); compacted {
		request.Revision = 0
		answer, err = ask(ctx, request)
	}
	switch {
	case Is(err, rpctypes.ErrFutureRev):
		return compacted, ErrHistoryChanged
	case err != nil:
		return compacted, err
	case !h.continues(answer.Header.ClusterId, answer.Header.Revision):
		return compacted, ErrHistoryChanged
	case h.holds(answer.Kvs, compacted):
		return compacted, nil
	case compacted || h.changed:
		return compacted, ErrHistoryChanged
	}
	return false, h.verifyMarker(ctx, request, ask)
}

// verifyMarker reads the marker at its own revision. The key may have changed since, in an event
// that a slower watch has not delivered yet.
func (h *History) verifyMarker(ctx context.Context, request *etcdserverpb.RangeRequest, ask Asker) error {
	request.Revision = h.marker.ModRevision
	answer, err := ask(ctx, request)
	switch {
	case Is(err, rpctypes.ErrCompacted), err == nil && !h.holds(answer.Kvs, false):
		return ErrHistoryChanged
	}
	return err
}

// continues reports whether a cluster at the given revision may have this history.
func (h *History) continues(cluster uint64, revision int64) bool {
	return (h.Cluster == 0 || cluster == h.Cluster) && revision >= h.Revision
}

// holds reports whether the marker agrees with etcd's answer. The answer is about a revision of
// this history, or, if that revision was compacted, about the current revision.
func (h *History) holds(kvs []*mvccpb.KeyValue, compacted bool) bool {
	switch {
	case h.marker == nil, compacted && len(kvs) == 0:
		return true
	case len(kvs) == 0:
		return false
	case kvs[0].ModRevision == h.marker.ModRevision:
		return bytes.Equal(kvs[0].Value, h.marker.Value)
	}
	return compacted && kvs[0].ModRevision > h.marker.ModRevision
}
