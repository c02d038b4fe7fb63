package etcd

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

// lease keeps keys in etcd for as long as their owner runs. Who holds the first of them holds all. It belongs to one
// goroutine.
type lease struct {
	client *Client
	// key is the first of the keys, and what names all of them.
	key, what string
	ttl       time.Duration
	// id is 0 while there is no lease.
	id int64
	// revision is that of the last write of keys by write; 0 means there was none.
	revision int64
	// renewed is when the lease was last known to live its whole time.
	renewed time.Time

	told bool
	last string // what was told
	// rival is who holds the keys instead, met when that was first seen.
	rival foreign
	met   time.Time
}

func (c *Client) newLease(key string, ttl time.Duration) (*lease, error) {
	if ttl < MinTTL {
		return nil, fmt.Errorf("a time to live of %s is too short: etcd needs %s at least", ttl, MinTTL)
	}
	return &lease{client: c, key: key, what: key, ttl: ttl}, nil
}

// granted returns a lease that etcd has granted.
func (c *Client) granted(ctx context.Context, key string, ttl time.Duration) (*lease, error) {
	l, err := c.newLease(key, ttl)
	if err == nil {
		l.id, err = l.grant(ctx)
	}
	return l, err
}

// errPatience is an error that is not worth a report yet.
var errPatience = errors.New("that may pass")

// keep renews the lease and then calls write, again and again, until ctx ends: at least three times in the life of
// the lease, and when wake has something, though then not sooner than least after the last time. Report hears whether
// that went well: each change of trouble, nil means none.
func (l *lease) keep(ctx context.Context, write func(context.Context) error, wake <-chan struct{}, least func() time.Duration, report func(error)) {
	for failures := 0; ctx.Err() == nil; {
		err := l.once(ctx, write)
		if ctx.Err() != nil {
			return
		}
		l.tell(err, report)
		pause := l.ttl / 3
		if err != nil {
			pause = min(pause, time.Second<<min(failures, 10))
			failures++
		} else {
			failures = 0
		}
		l.pause(ctx, pause*3/4+rand.N(pause/4+1), err == nil, wake, least)
	}
}

// parting is how long a daemon's end may wait for etcd.
const parting = 2 * time.Second

// hold is keep, and revokes the lease in the end.
func (l *lease) hold(ctx context.Context, write func(context.Context) error, wake <-chan struct{}, least func() time.Duration, report func(error)) {
	l.keep(ctx, write, wake, least, report)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), parting)
	defer cancel()
	_ = l.revoke(ctx) // in vain where etcd is away; then the lease ends by itself
}

// heldBy is the error of a node that finds its key in other hands, which another daemon of the same name may have. What a
// former run has left ends with its lease, and is not told before.
func (l *lease) heldBy(other foreign) error {
	if other.lease == 0 {
		return fmt.Errorf("%s was written by another program, without a lease: delete it", l.key)
	}
	if other != l.rival {
		l.rival, l.met = other, time.Now()
	}
	if time.Since(l.met) < l.ttl+l.ttl/2 {
		return errPatience
	}
	return fmt.Errorf("%s is held by another vipd: give each host its own node name", l.key)
}

// once renews the lease and writes.
func (l *lease) once(ctx context.Context, write func(context.Context) error) error {
	err := l.renew(ctx)
	if err == nil {
		err = write(ctx)
	}
	if is(err, rpctypes.ErrLeaseNotFound) {
		l.id = 0
		return errPatience // the next attempt asks for another
	}
	return err
}

// limit bounds one step, so that some of the life of the lease is left for another attempt.
func (l *lease) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(l.ttl/4, time.Second))
}

func (l *lease) pause(ctx context.Context, pause time.Duration, well bool, woken <-chan struct{}, least func() time.Duration) {
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
		wake.Sleep(ctx, least()-time.Since(began))
	}
}

// tell reports how it is, if that is news.
func (l *lease) tell(err error, report func(error)) {
	if errors.Is(err, errPatience) {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if report != nil && (!l.told || text != l.last) {
		report(err)
	}
	l.told, l.last = true, text
}

// renew keeps the lease alive, where a part of its time has passed, or asks for one.
func (l *lease) renew(ctx context.Context) error {
	began := time.Now()
	if l.id != 0 && began.Sub(l.renewed) < l.ttl/5 {
		return nil
	}
	var err error
	if l.id != 0 {
		err = l.alive(ctx)
		if !is(err, rpctypes.ErrLeaseNotFound) {
			if err == nil {
				l.renewed = began
			}
			return err
		}
		l.id = 0
	}
	if l.id, err = l.grant(ctx); err == nil {
		l.renewed = began
	}
	return err
}

// do asks etcd for something about the lease.
func (l *lease) do(ctx context.Context, operation func(context.Context, etcdserverpb.LeaseClient) error) error {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	return l.client.do(ctx, l.key, l.client.members.write, func(ctx context.Context, m *member) error {
		return operation(ctx, etcdserverpb.NewLeaseClient(m.conn()))
	})
}

func (l *lease) grant(ctx context.Context) (id int64, err error) {
	err = l.do(ctx, func(ctx context.Context, leases etcdserverpb.LeaseClient) error {
		answer, err := leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: int64((l.ttl + time.Second - 1) / time.Second)})
		id = answer.GetID()
		return err
	})
	return id, err
}

func (l *lease) alive(ctx context.Context) error {
	return l.do(ctx, func(ctx context.Context, leases etcdserverpb.LeaseClient) error {
		ctx, cancel := context.WithCancel(ctx) // ends the stream
		defer cancel()
		stream, err := leases.LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: l.id}); err != nil {
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

// revoke ends the lease, and with it the keys.
func (l *lease) revoke(ctx context.Context) error {
	if l.id == 0 {
		return nil
	}
	err := l.do(ctx, func(ctx context.Context, leases etcdserverpb.LeaseClient) error {
		_, err := leases.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: l.id})
		return err
	})
	if is(err, rpctypes.ErrLeaseNotFound) {
		err = nil
	}
	if err == nil {
		l.id = 0
	}
	return err
}

// put is the writing of a key under the lease.
func (l *lease) put(key string, text []byte) *etcdserverpb.RequestOp { return put(key, text, l.id) }

// ours is the condition that a key is under the lease.
func (l *lease) ours(key string) *etcdserverpb.Compare { return under(key, l.id) }

// under is the condition that a key is under the lease of that number.
func under(key string, id int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.LeaseValue(key), "=", id)
	return c.GetCompare()
}

// write makes change where the first key, and those of also, are under the lease, and first where no lease has the
// first key. Else nothing is written, and it returns who has it: that is the lease itself where others are missing.
func (l *lease) write(ctx context.Context, first, change []*etcdserverpb.RequestOp, also ...string) (other *foreign, err error) {
	conditions := []*etcdserverpb.Compare{l.ours(l.key)}
	for _, key := range also {
		conditions = append(conditions, l.ours(key))
	}
	other, err = l.attempt(ctx, conditions, change)
	if other != nil && *other == (foreign{}) {
		other, err = l.attempt(ctx, []*etcdserverpb.Compare{unchanged(l.key, 0)}, first)
	}
	return other, err
}

// foreign is who has a key: a lease, or 0 where it is under none; created is the key's revision, 0 where there is no such key.
type foreign struct{ lease, created int64 }

// attempt runs ops if the conditions hold, and else returns who has the first key.
func (l *lease) attempt(ctx context.Context, conditions []*etcdserverpb.Compare, ops []*etcdserverpb.RequestOp) (*foreign, error) {
	// All members agree on the answer: one that is cut off would go on reporting a lease of the past.
	look := read(&etcdserverpb.RangeRequest{Key: []byte(l.key)})
	request := &etcdserverpb.TxnRequest{Compare: conditions, Success: ops, Failure: []*etcdserverpb.RequestOp{look}}
	ctx, cancel := l.limit(ctx)
	defer cancel()
	answer, err := l.client.transact(ctx, l.what, request)
	if err == nil && answer.Succeeded && len(ops) > 0 {
		l.revision = answer.Header.Revision
	}
	if err != nil || answer.Succeeded {
		return nil, err
	}
	held := &foreign{}
	if kvs := answer.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
		*held = foreign{kvs[0].Lease, kvs[0].CreateRevision}
	}
	return held, nil
}
