package client

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/store/etcd/schema"
)

// Result is the result of a change.
type Result struct {
	// Revision is the revision of the write. If nothing was changed, it is the existing value's
	// revision.
	Revision int64
	Changed  bool
}

// noteTTL is the lifetime of a note, which names the user that removed an override or a node's
// settings. During this time, every node that is connected to etcd can read the note and record an
// event.
const noteTTL = time.Minute

// Edited is the new value of a key. A nil text removes the key. Note reports whether the value is a
// note, which is attached to a lease.
type Edited struct {
	Text []byte
	Note bool
}

// Edit changes a key. The function change receives the current value, or nil if the key does not
// exist, and returns the new value. Edit calls change again if another client has written the key
// in the meantime.
func (c *Client) Edit(ctx context.Context, key string, change func([]byte) (Edited, error)) (Result, error) {
	for range 10 {
		answer, err := c.Get(ctx, &etcdserverpb.RangeRequest{Key: []byte(key)})
		if err != nil {
			return Result{}, err
		}
		var old []byte
		var revision int64
		if len(answer.Kvs) > 0 {
			old, revision = answer.Kvs[0].Value, answer.Kvs[0].ModRevision
		}
		next, err := change(old)
		if err == nil {
			err = schema.CheckEntry(key, next.Text)
		}
		if err != nil {
			return Result{}, err
		}
		if next.Text == nil && revision == 0 || next.Text != nil && revision != 0 && bytes.Equal(next.Text, old) {
			return Result{Revision: revision}, nil
		}
		op := Remove(key)
		if next.Text != nil {
			lease, err := c.noteLease(ctx, key, next.Note)
			if err != nil {
				return Result{}, err
			}
			op = Put(key, next.Text, lease)
		}
		at, ok, err := c.Commit(ctx, key, []*etcdserverpb.Compare{Unchanged(key, revision)}, []*etcdserverpb.RequestOp{op})
		if err != nil || ok {
			return Result{at, ok}, err
		}
	}
	return Result{}, fmt.Errorf("other clients keep changing %s: nothing was written. Try again", key)
}

// noteLease grants a lease for a note. For other values, it returns 0.
func (c *Client) noteLease(ctx context.Context, key string, note bool) (int64, error) {
	if !note {
		return 0, nil
	}
	l, err := c.Granted(ctx, key, noteTTL)
	if err != nil {
		return 0, err
	}
	return l.ID, nil
}
