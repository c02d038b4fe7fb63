package definitions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// endedTTL is how long etcd keeps a pending change that has ended, so each node that is connected
// to etcd learns how it ended.
const endedTTL = time.Minute

// ErrNotPending means that no change is pending in etcd.
var ErrNotPending = errors.New("no change is pending in etcd")

// Pending returns the pending change and its revision. The error is ErrNotPending if there is none.
func (w *Writer) Pending(ctx context.Context, now time.Time) (*schema.Pending, int64, error) {
	p, revision, err := w.lastPending(ctx)
	if err == nil && (p == nil || !p.Live(now)) {
		err = ErrNotPending
	}
	return p, revision, err
}

// lastPending returns the pending change, which may have ended, or nil.
func (w *Writer) lastPending(ctx context.Context) (*schema.Pending, int64, error) {
	key := w.keys.Pending()
	answer, err := w.client.Get(ctx, &etcdserverpb.RangeRequest{Key: []byte(key)})
	if err != nil || len(answer.Kvs) == 0 {
		return nil, 0, err
	}
	kv := answer.Kvs[0]
	p, _ := schema.DecodePending(kv.Value, balancer.Origin{Key: key, Revision: kv.ModRevision}, nil)
	return p, kv.ModRevision, nil
}

// Try makes a change pending. It is refused while another change is pending.
func (w *Writer) Try(ctx context.Context, p *schema.Pending) (revision int64, err error) {
	last, at, err := w.lastPending(ctx)
	if err != nil {
		return 0, err
	}
	if last != nil && last.Live(time.Now()) {
		return 0, anotherPending(last)
	}
	return w.putPending(ctx, p, at, time.Until(p.Until)+endedTTL)
}

func anotherPending(p *schema.Pending) error {
	return fmt.Errorf("another change by %s is pending until %s: vipctl confirm keeps it, vipctl abort reverts it", p.By, p.Until.Local().Format(time.RFC3339))
}

// EndPending ends the pending change p, unless another change was written since the given revision.
// The parameter confirmed reports whether p's services were written for all nodes.
func (w *Writer) EndPending(ctx context.Context, p *schema.Pending, revision int64, by string, confirmed bool) error {
	ended := *p
	ended.Ended, ended.Confirmed = by, confirmed
	if !confirmed {
		ended.Until = ended.Since
	}
	_, err := w.putPending(ctx, &ended, revision, endedTTL)
	return err
}

// putPending writes the key under a lease, unless the key's revision differs from the given
// revision. etcd removes the key when the lease ends.
func (w *Writer) putPending(ctx context.Context, p *schema.Pending, revision int64, ttl time.Duration) (int64, error) {
	key := w.keys.Pending()
	text, err := schema.Encode(p)
	if err != nil {
		return 0, err
	}
	if n := len(text); n > schema.MaxPendingText {
		return 0, fmt.Errorf("the pending change has %d bytes; at most %d are allowed: apply the services in parts", n, schema.MaxPendingText)
	}
	lease, err := w.client.Granted(ctx, key, ttl)
	if err != nil {
		return 0, err
	}
	at, ok, err := w.client.Commit(ctx, key, []*etcdserverpb.Compare{client.Unchanged(key, revision)}, []*etcdserverpb.RequestOp{client.Put(key, text, lease.ID)})
	if err == nil && !ok {
		err = errors.New("someone else has started or ended a pending change at the same time: check the result with vipctl status")
	}
	return at, err
}
