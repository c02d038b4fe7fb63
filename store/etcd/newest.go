package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// found is what newest has found last.
type found struct {
	revision int64
	// removed is that of the last removal in the revisions after since up to until.
	removed, since, until int64
	due                   time.Time // when it looks again
}

// newestShare bounds what looking for the newest revision costs: one part of the time in so many. After newestPause it is looked for all
// the same: one slow answer must not leave it as it is for minutes.
const (
	newestShare = 20
	newestPause = 5 * time.Second
)

// newest returns the revision of the last change of what all nodes follow, at times as it was a while ago. Changes that
// leave a key behind are found by that; of removals only those matter that a node may still have to follow.
func (w *Writer) newest(ctx context.Context, nodes []Node) (int64, error) {
	w.newestMu.Lock()
	defer w.newestMu.Unlock()
	f := &w.found
	if time.Now().Before(f.due) {
		return max(f.revision, f.removed), nil
	}
	began := time.Now()
	revision, at, err := w.changed(ctx)
	if err != nil {
		return 0, err
	}
	if at < f.until {
		*f = found{} // etcd has begun anew
	}
	f.revision, f.due = revision, time.Now().Add(min(newestShare*time.Since(began), newestPause))
	last, least := laggards(nodes)
	if last == nil {
		return max(f.revision, f.removed), nil // no node is behind
	}
	since := max(revision, least)
	if since < f.since || since > f.until {
		f.since, f.until = since, since
	}
	if r := (removals{Writer: w, since: f.until, until: at, node: last}); r.wanted() {
		removed, err := r.find(ctx)
		if err != nil {
			return 0, err
		}
		f.removed, f.until = max(f.removed, removed), max(f.until, at)
	}
	return max(f.revision, f.removed), nil
}

// changed returns the revision of the last change of what all nodes follow, of what is still there, and of the history,
// which knows of services that are gone. At is the revision of etcd then.
func (w *Writer) changed(ctx context.Context) (revision, at int64, err error) {
	for _, s := range append(w.keys.scopes(""), folder(w.keys.prefix+historyFolder)) {
		answer, err := w.get(ctx, &etcdserverpb.RangeRequest{
			Key: []byte(s.key), RangeEnd: []byte(s.end), Limit: 1, KeysOnly: true,
			SortOrder: etcdserverpb.RangeRequest_DESCEND, SortTarget: etcdserverpb.RangeRequest_MOD,
		})
		if err != nil {
			return 0, 0, err
		}
		if at == 0 {
			at = answer.Header.Revision
		}
		if len(answer.Kvs) > 0 {
			revision = max(revision, answer.Kvs[0].ModRevision)
		}
	}
	return revision, at, nil
}

// laggards returns the node that has told its status last, nil where none has, and the least revision that one has
// applied.
func laggards(nodes []Node) (last *Node, least int64) {
	for i := range nodes {
		n := &nodes[i]
		if n.Live == nil || n.Status == nil {
			continue
		}
		if last == nil || n.Status.Revision < least {
			least = n.Status.Revision
		}
		if last == nil || n.said > last.said {
			last = n
		}
	}
	return last, least
}

// removals looks for removals of what all nodes follow, in the revisions after since up to until: with watches of the
// past, since what is gone has no key that says when. A last watch, of a key that a node has written, ends the look: a
// server catches up with all new watches of the past together, so that what comes when something has come of that is
// behind all the rest.
type removals struct {
	*Writer
	since, until int64
	node         *Node
	// proxied: who answers is no member, which has no answer to requests for progress. ended: the last watch has told.
	proxied, ended bool
	removed        int64
}

const (
	// mostPast is how many revisions are looked through; removals before those stay unknown.
	mostPast = 100_000
	// pastPatience bounds the look, proxyPatience what a proxy may take for the rest after the last watch.
	pastPatience  = 5 * time.Second
	proxyPatience = time.Second
)

// wanted reports whether there is anything to look at.
func (r *removals) wanted() bool { return r.since < r.until && r.node.said > r.until-mostPast }

// find returns the revision of the last removal; 0 means there is none, or none is known any more.
func (r *removals) find(ctx context.Context) (int64, error) {
	r.since = max(r.since, r.until-mostPast)
	err := r.do(ctx, r.keys.prefix, func(ctx context.Context, client *clientv3.Client) error {
		// What is compacted can't be looked at: the second attempt begins after that.
		for range 2 {
			compacted, err := r.look(ctx, client)
			if err != nil || compacted <= r.since {
				return err
			}
			r.since = compacted
		}
		return nil
	})
	return r.removed, err
}

// look follows the watches until all have told. It returns the revision up to which etcd has forgotten what was, where
// that is in the way.
func (r *removals) look(ctx context.Context, client *clientv3.Client) (compacted int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pastPatience)
	defer cancel()
	watch, err := etcdserverpb.NewWatchClient(client.ActiveConnection()).Watch(ctx, grpc.MaxCallRecvMsgSize(mostReceived))
	if err != nil {
		return 0, err
	}
	r.ended = false
	end := r.create(watch)
	for {
		answer, err := watch.Recv()
		switch {
		case err != nil && r.ended:
			return 0, nil // a proxy, which says no more
		case err != nil:
			return 0, err
		case answer.Canceled && answer.CompactRevision == 0:
			return 0, errors.New(answer.CancelReason)
		case answer.Created:
			r.proxied = r.proxied || answer.WatchId == 0
			continue
		case answer.Canceled && answer.WatchId != end && answer.WatchId != end-1:
			return answer.CompactRevision, nil
		case answer.Canceled, r.take(answer.Events):
		case len(answer.Events) == 0 && r.ended:
			return 0, nil
		default:
			continue
		}
		if r.ended = true; r.proxied {
			defer time.AfterFunc(proxyPatience, cancel).Stop()
			continue
		}
		progress := &etcdserverpb.WatchRequest_ProgressRequest{ProgressRequest: &etcdserverpb.WatchProgressRequest{}}
		_ = watch.Send(&etcdserverpb.WatchRequest{RequestUnion: progress}) // Recv says why not
	}
}

// create asks for the watches, and returns the number of the last one. A proxy's is one less.
func (r *removals) create(watch etcdserverpb.Watch_WatchClient) (end int64) {
	var all []*etcdserverpb.WatchCreateRequest
	for _, s := range r.keys.scopes("") {
		all = append(all, &etcdserverpb.WatchCreateRequest{
			Key: []byte(s.key), RangeEnd: []byte(s.end), StartRevision: r.since + 1,
			Filters: []etcdserverpb.WatchCreateRequest_FilterType{etcdserverpb.WatchCreateRequest_NOPUT},
		})
	}
	all = append(all, &etcdserverpb.WatchCreateRequest{Key: []byte(r.keys.NodeStatus(r.node.Name)), StartRevision: r.node.said})
	for i, create := range all {
		create.WatchId, create.Fragment = int64(i+1), true
		request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}}
		if err := watch.Send(request); err != nil {
			break // Recv says why
		}
	}
	return int64(len(all))
}

// take takes in events, and reports whether they are the first of the last watch.
func (r *removals) take(events []*mvccpb.Event) (ends bool) {
	for _, e := range events {
		if string(e.Kv.Key) == r.keys.NodeStatus(r.node.Name) {
			ends = !r.ended
		} else if e.Type == mvccpb.DELETE {
			r.removed = max(r.removed, e.Kv.ModRevision)
		}
	}
	return ends
}
