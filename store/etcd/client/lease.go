package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"vipd/balancer/lib/wake"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// MinTTL is the shortest life of a lease that etcd's own elections leave room for.
const MinTTL = 2 * time.Second

// Lease keeps keys in etcd for as long as their owner runs. Who holds the first of them holds all. It belongs to one
// goroutine.
type Lease struct {
	Client *Client
	// Key is the first of the keys, and what names all of them.
	Key, What string
	TTL       time.Duration
	// ID is 0 while there is no lease.
	ID int64
	// Revision is that of the last write of keys by write; 0 means there was none.
	Revision int64
	// renewed is when the lease was last known to live its whole time.
	renewed time.Time

	Reported   bool
	lastReport string // what was told
	// Rival is who holds the keys instead, met when that was first seen.
	Rival Foreign
	met   time.Time
}

// NewLease returns a lease that is not granted yet. Key is the first of the keys that it will hold.
func (c *Client) NewLease(key string, ttl time.Duration) (*Lease, error) {
	if ttl < MinTTL {
		return nil, fmt.Errorf("a time to live of %s is too short: etcd needs %s at least", ttl, MinTTL)
	}
	return &Lease{Client: c, Key: key, What: key, TTL: ttl}, nil
}

// Granted returns a lease that etcd has granted.
func (c *Client) Granted(ctx context.Context, key string, ttl time.Duration) (*Lease, error) {
	l, err := c.NewLease(key, ttl)
	if err == nil {
		l.ID, err = l.grant(ctx)
	}
	return l, err
}

// ErrPatience is an error that is not worth a report yet.
var ErrPatience = errors.New("that may pass")

// Keep renews the lease and then calls write, again and again, until ctx ends: at least three times in the life of
// the lease, and when wake has something, though then not sooner than least after the last time. Report hears whether
// that went well: each change of trouble, nil means none.
func (l *Lease) Keep(ctx context.Context, write func(context.Context) error, wake <-chan struct{}, minPause func() time.Duration, report func(error)) {
	for failures := 0; ctx.Err() == nil; {
		err := l.once(ctx, write)
		if ctx.Err() != nil {
			return
		}
		l.reportChange(err, report)
		pause := l.TTL / 3
		if err != nil {
			pause = min(pause, time.Second<<min(failures, 10))
			failures++
		} else {
			failures = 0
		}
		l.pause(ctx, pause*3/4+rand.N(pause/4+1), err == nil, wake, minPause)
	}
}

// revokeTimeout is how long a daemon's end may wait for etcd.
const revokeTimeout = 2 * time.Second

// Hold is keep, and revokes the lease in the end.
func (l *Lease) Hold(ctx context.Context, write func(context.Context) error, wake <-chan struct{}, minPause func() time.Duration, report func(error)) {
	l.Keep(ctx, write, wake, minPause, report)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	_ = l.Revoke(ctx) // in vain where etcd is away; then the lease ends by itself
}

// HeldBy is the error of a node that finds its key in other hands, which another daemon of the same name may have. What a
// former run has left ends with its lease, and is not told before.
func (l *Lease) HeldBy(other Foreign) error {
	if other.Lease == 0 {
		return fmt.Errorf("%s was written by another program, without a lease: delete it", l.Key)
	}
	if other != l.Rival {
		l.Rival, l.met = other, time.Now()
	}
	if time.Since(l.met) < l.TTL+l.TTL/2 {
		return ErrPatience
	}
	return fmt.Errorf("%s is held by another vipd: give each host its own node name", l.Key)
}

// once renews the lease and writes.
func (l *Lease) once(ctx context.Context, write func(context.Context) error) error {
	err := l.Renew(ctx)
	if err == nil {
		err = write(ctx)
	}
	if Is(err, rpctypes.ErrLeaseNotFound) {
		l.ID = 0
		return ErrPatience // the next attempt asks for another
	}
	return err
}

// Limit bounds one step, so that some of the life of the lease is left for another attempt.
func (l *Lease) Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(l.TTL/4, time.Second))
}

func (l *Lease) pause(ctx context.Context, pause time.Duration, well bool, woken <-chan struct{}, minPause func() time.Duration) {
	if !well {
		woken = nil // what is new waits with the rest
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	began := time.Now()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-woken:
		wake.Sleep(ctx, minPause()-time.Since(began))
	}
}

// reportChange reports how it is, if that is news.
func (l *Lease) reportChange(err error, report func(error)) {
	if errors.Is(err, ErrPatience) {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if report != nil && (!l.Reported || text != l.lastReport) {
		report(err)
	}
	l.Reported, l.lastReport = true, text
}

// Renew keeps the lease alive, where a part of its time has passed, or asks for one.
func (l *Lease) Renew(ctx context.Context) error {
	began := time.Now()
	if l.ID != 0 && began.Sub(l.renewed) < l.TTL/5 {
		return nil
	}
	var err error
	if l.ID != 0 {
		err = l.Alive(ctx)
		if !Is(err, rpctypes.ErrLeaseNotFound) {
			if err == nil {
				l.renewed = began
			}
			return err
		}
		l.ID = 0
	}
	if l.ID, err = l.grant(ctx); err == nil {
		l.renewed = began
	}
	return err
}

// do asks etcd for something about the lease.
func (l *Lease) do(ctx context.Context, operation func(context.Context, etcdserverpb.LeaseClient) error) error {
	ctx, cancel := l.Limit(ctx)
	defer cancel()
	return l.Client.Do(ctx, l.Key, l.Client.Members.write, func(ctx context.Context, m *Member) error {
		return operation(ctx, etcdserverpb.NewLeaseClient(m.Conn()))
	})
}

func (l *Lease) grant(ctx context.Context) (id int64, err error) {
	err = l.do(ctx, func(ctx context.Context, leases etcdserverpb.LeaseClient) error {
		answer, err := leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: int64((l.TTL + time.Second - 1) / time.Second)})
		id = answer.GetID()
		return err
	})
	return id, err
}

// Alive renews the lease once.
func (l *Lease) Alive(ctx context.Context) error {
	return l.do(ctx, func(ctx context.Context, leases etcdserverpb.LeaseClient) error {
		ctx, cancel := context.WithCancel(ctx) // ends the stream
		defer cancel()
		stream, err := leases.LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: l.ID}); err != nil {
			_, err = stream.Recv() // says why
			return err
		}
		answer, err := stream.Recv()
		if err == nil && answer.TTL <= 0 {
			err = rpctypes.ErrGRPCLeaseNotFound
		}
		return err
	})
}

// Revoke ends the lease, and with it the keys.
func (l *Lease) Revoke(ctx context.Context) error {
	if l.ID == 0 {
		return nil
	}
	err := l.do(ctx, func(ctx context.Context, leases etcdserverpb.LeaseClient) error {
		_, err := leases.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: l.ID})
		return err
	})
	if Is(err, rpctypes.ErrLeaseNotFound) {
		err = nil
	}
	if err == nil {
		l.ID = 0
	}
	return err
}

// Put is the writing of a key under the lease.
func (l *Lease) Put(key string, text []byte) *etcdserverpb.RequestOp { return Put(key, text, l.ID) }

// Ours is the condition that a key is under the lease.
func (l *Lease) Ours(key string) *etcdserverpb.Compare { return Under(key, l.ID) }

// Under is the condition that a key is under the lease of that number.
func Under(key string, id int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.LeaseValue(key), "=", id)
	return c.GetCompare()
}

// Write makes change where the first key, and those of also, are under the lease, and first where no lease has the
// first key. Else nothing is written, and it returns who has it: that is the lease itself where others are missing.
func (l *Lease) Write(ctx context.Context, first, change []*etcdserverpb.RequestOp, also ...string) (other *Foreign, err error) {
	conditions := []*etcdserverpb.Compare{l.Ours(l.Key)}
	for _, key := range also {
		conditions = append(conditions, l.Ours(key))
	}
	other, err = l.Attempt(ctx, conditions, change)
	if other != nil && *other == (Foreign{}) {
		other, err = l.Attempt(ctx, []*etcdserverpb.Compare{Unchanged(l.Key, 0)}, first)
	}
	return other, err
}

// Foreign is who has a key: a lease, or 0 where it is under none; created is the key's revision, 0 where there is no such key.
type Foreign struct{ Lease, created int64 }

// Attempt runs ops if the conditions hold, and else returns who has the first key.
func (l *Lease) Attempt(ctx context.Context, conditions []*etcdserverpb.Compare, ops []*etcdserverpb.RequestOp) (*Foreign, error) {
	// All members agree on the answer: one that is cut off would go on reporting a lease of the past.
	look := Read(&etcdserverpb.RangeRequest{Key: []byte(l.Key)})
	request := &etcdserverpb.TxnRequest{Compare: conditions, Success: ops, Failure: []*etcdserverpb.RequestOp{look}}
	ctx, cancel := l.Limit(ctx)
	defer cancel()
	answer, err := l.Client.Transact(ctx, l.What, request)
	if err == nil && answer.Succeeded && len(ops) > 0 {
		l.Revision = answer.Header.Revision
	}
	if err != nil || answer.Succeeded {
		return nil, err
	}
	held := &Foreign{}
	if kvs := answer.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
		*held = Foreign{kvs[0].Lease, kvs[0].CreateRevision}
	}
	return held, nil
}
