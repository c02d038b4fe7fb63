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

// MinTTL is the minimum time to live of a lease. etcd's elections use a part of this time.
const MinTTL = 2 * time.Second

// Lease keeps keys in etcd while their owner is running. The holder of the first key holds all
// keys. Only one goroutine at a time may use a Lease.
type Lease struct {
	Client *Client
	// Key is the first key. What describes all keys, for errors.
	Key, What string
	TTL       time.Duration
	// ID is the lease's ID, or 0 if no lease is granted.
	ID int64
	// Revision is the revision at which the keys were last written, or 0 before the first write.
	Revision int64
	// renewed is when the lease was last renewed.
	renewed time.Time

	Reported   bool
	lastReport string // the text of the last report
	// Rival is the holder of the keys if another lease holds them. met is when the rival was first
	// seen.
	Rival Foreign
	met   time.Time
}

// NewLease returns a lease that is not granted yet. key is the first key that it will hold.
func (c *Client) NewLease(key string, ttl time.Duration) (*Lease, error) {
	if ttl < MinTTL {
		return nil, fmt.Errorf("a time to live of %s is too short: etcd needs at least %s", ttl, MinTTL)
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

// ErrPatience is an error that is not reported yet, because it may be temporary.
var ErrPatience = errors.New("that might be temporary")

// Keep repeatedly renews the lease and then calls write, until ctx ends. It does so at least three
// times per lease lifetime, and after each signal on wake, but with pauses of at least minPause. It
// calls report with each new error, and with nil after a success.
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

// revokeTimeout limits how long a daemon that is shutting down waits for etcd.
const revokeTimeout = 2 * time.Second

// Hold works like [Lease.Keep], and finally revokes the lease.
func (l *Lease) Hold(ctx context.Context, write func(context.Context) error, wake <-chan struct{}, minPause func() time.Duration, report func(error)) {
	l.Keep(ctx, write, wake, minPause, report)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	_ = l.Revoke(ctx) // if etcd is unavailable, the lease expires
}

// HeldBy returns an error that says that other holds the lease's first key, for example another
// daemon with the same node name. A previous run's key expires with its lease, so HeldBy returns
// [ErrPatience] until the key has existed for longer than that.
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

// once renews the lease and writes the keys. If the lease has expired, it returns [ErrPatience].
func (l *Lease) once(ctx context.Context, write func(context.Context) error) error {
	err := l.Renew(ctx)
	if err == nil {
		err = write(ctx)
	}
	if Is(err, rpctypes.ErrLeaseNotFound) {
		l.ID = 0
		return ErrPatience // the next attempt requests another lease
	}
	return err
}

// Limit limits the duration of a step, so there is time for another attempt before the lease
// expires.
func (l *Lease) Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(l.TTL/4, time.Second))
}

func (l *Lease) pause(ctx context.Context, pause time.Duration, well bool, woken <-chan struct{}, minPause func() time.Duration) {
	if !well {
		woken = nil // new changes wait for the next attempt
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

// reportChange calls report with an error or nil, unless the last report was the same or the error
// is [ErrPatience].
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

// Renew renews the lease if part of its lifetime has passed. If no lease is granted, it requests a
// lease.
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

// do runs a request about the lease.
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

func (l *Lease) Alive(ctx context.Context) error {
	return l.do(ctx, func(ctx context.Context, leases etcdserverpb.LeaseClient) error {
		ctx, cancel := context.WithCancel(ctx) // the cancellation ends the stream
		defer cancel()
		stream, err := leases.LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: l.ID}); err != nil {
			_, err = stream.Recv() // returns the reason
			return err
		}
		answer, err := stream.Recv()
		if err == nil && answer.TTL <= 0 {
			err = rpctypes.ErrGRPCLeaseNotFound
		}
		return err
	})
}

// Revoke ends the lease and removes its keys.
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

// Put returns the operation that writes a key under the lease.
func (l *Lease) Put(key string, text []byte) *etcdserverpb.RequestOp { return Put(key, text, l.ID) }

// Ours returns the condition that a key is attached to the lease.
func (l *Lease) Ours(key string) *etcdserverpb.Compare { return Under(key, l.ID) }

// Under returns the condition that a key is attached to the lease with the given ID.
func Under(key string, id int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.LeaseValue(key), "=", id)
	return c.GetCompare()
}

// Write runs the operations in change if the first key and the additional keys in also are attached
// to the lease. If the first key does not exist, it runs the operations in first. Otherwise it
// writes nothing and returns the holder of the first key, which is the lease itself if other keys
// are missing.
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

// Foreign identifies the holder of a key by its lease, or by 0 if the key has no lease. created is
// the revision that created the key, or 0 if the key does not exist.
type Foreign struct{ Lease, created int64 }

// Attempt runs ops if the conditions hold. Otherwise it returns the holder of the first key.
func (l *Lease) Attempt(ctx context.Context, conditions []*etcdserverpb.Compare, ops []*etcdserverpb.RequestOp) (*Foreign, error) {
	// This read is linearizable, because a member that is cut off would still report an expired
	// lease.
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
