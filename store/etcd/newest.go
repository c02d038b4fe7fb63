package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// found is what newest has found last, and when it looks again.
type found struct {
	revision int64
	due      time.Time
}

// newestShare bounds what looking for the newest revision costs: one part of the time in so many. After newestPause it is looked for all
// the same: one slow answer must not leave it as it is for minutes.
const (
	newestShare = 20
	newestPause = 5 * time.Second
)

// newest returns the revision of the last change of what all nodes follow, as far as that has left a key behind, or the
// history, which knows of services that are gone. It may be that of a while ago.
func (w *Writer) newest(ctx context.Context) (int64, error) {
	w.newestMu.Lock()
	defer w.newestMu.Unlock()
	if time.Now().Before(w.found.due) {
		return w.found.revision, nil
	}
	began, revision := time.Now(), int64(0)
	for _, s := range append(w.keys.scopes(""), folder(w.keys.prefix+historyFolder)) {
		answer, err := w.get(ctx, &etcdserverpb.RangeRequest{
			Key: []byte(s.key), RangeEnd: []byte(s.end), Limit: 1, KeysOnly: true,
			SortOrder: etcdserverpb.RangeRequest_DESCEND, SortTarget: etcdserverpb.RangeRequest_MOD,
		})
		if err != nil {
			return 0, err
		}
		if len(answer.Kvs) > 0 {
			revision = max(revision, answer.Kvs[0].ModRevision)
		}
	}
	w.found = found{revision, time.Now().Add(min(newestShare*time.Since(began), newestPause))}
	return revision, nil
}
