package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
)

// Registrar keeps one endpoint in etcd under a lease. It belongs to one goroutine.
type Registrar struct {
	writer   *Writer
	id       balancer.EndpointID
	endpoint balancer.Endpoint
	ttl      time.Duration
	lease    clientv3.LeaseID
	// Report hears whether the endpoint is registered: nil, or why not. Nil: nobody hears. It is called with each
	// change only.
	Report func(error)
	told   bool
	last   string
}

// MinTTL is the shortest life of a lease that etcd's own elections leave room for.
const MinTTL = 2 * time.Second

// Registrar returns one that has not done anything yet. The endpoint is gone ttl after the registrar's end, rounded up
// to seconds.
func (w *Writer) Registrar(id balancer.EndpointID, endpoint balancer.Endpoint, ttl time.Duration) (*Registrar, error) {
	if !id.Service.Valid() {
		return nil, fmt.Errorf("%q names no service: names are DNS labels of a-z, 0-9 and -", id.Service)
	}
	if err := CheckID(id.ID); err != nil {
		return nil, err
	}
	if ttl < MinTTL {
		return nil, fmt.Errorf("a time to live of %s is too short: etcd needs %s at least", ttl, MinTTL)
	}
	return &Registrar{writer: w, id: id, endpoint: endpoint, ttl: ttl}, nil
}

// Run registers the endpoint, again whenever it is gone, until ctx ends. It does not take the key from another
// registrar that holds it by then, and says so in Report. The endpoint stays until Leave or until the lease ends.
func (r *Registrar) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.renew(ctx)
		if ctx.Err() != nil {
			return
		}
		r.report(err)
		pause := r.ttl / 3
		if err != nil {
			pause = min(pause, time.Second)
		}
		sleep(ctx, pause*3/4+rand.N(pause/4+1))
	}
}

func (r *Registrar) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if r.Report != nil && (!r.told || text != r.last) {
		r.Report(err)
	}
	r.told, r.last = true, text
}

// renew keeps the lease alive and the key under it.
func (r *Registrar) renew(ctx context.Context) error {
	key := r.writer.keys.Endpoint(r.id)
	fresh := r.lease == clientv3.NoLease
	if !fresh {
		err := r.writer.do(ctx, key, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.KeepAliveOnce(ctx, r.lease)
			return err
		})
		if is(err, rpctypes.ErrLeaseNotFound) {
			r.lease, fresh = clientv3.NoLease, true
		} else if err != nil {
			return err
		}
	}
	if !fresh {
		answer, err := r.writer.get(ctx, &etcdserverpb.RangeRequest{Key: []byte(key)})
		if err != nil {
			return err
		}
		if len(answer.Kvs) > 0 {
			if clientv3.LeaseID(answer.Kvs[0].Lease) != r.lease {
				return fmt.Errorf("%s is held by another registrar: give each its own ID", key)
			}
			return nil
		}
	}
	return r.put(ctx)
}

// put writes the key, under a lease that it asks for where there is none.
func (r *Registrar) put(ctx context.Context) error {
	key := r.writer.keys.Endpoint(r.id)
	if r.lease == clientv3.NoLease {
		err := r.writer.do(ctx, key, func(ctx context.Context, client *clientv3.Client) error {
			lease, err := client.Grant(ctx, int64((r.ttl+time.Second-1)/time.Second))
			if err == nil {
				r.lease = lease.ID
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	text, err := encode(balancer.EncodeEndpoint(&r.endpoint))
	if err != nil {
		return err
	}
	_, _, err = r.writer.commit(ctx, key, nil, []*etcdserverpb.RequestOp{put(key, text, int64(r.lease))})
	if is(err, rpctypes.ErrLeaseNotFound) {
		r.lease = clientv3.NoLease // the next attempt asks for another
	}
	return err
}

// Drain says that the endpoint takes no new connections, and goes on being registered so. Run must not run meanwhile.
func (r *Registrar) Drain(ctx context.Context) error {
	r.endpoint.Draining = true
	return r.put(ctx)
}

// Leave takes the endpoint out. Its lease ends by itself: a key that goes while its lease lives has left on purpose.
// Run must not run meanwhile, and another registrar's key is left alone.
func (r *Registrar) Leave(ctx context.Context) error {
	key := r.writer.keys.Endpoint(r.id)
	ours := &etcdserverpb.Compare{
		Result: etcdserverpb.Compare_EQUAL, Target: etcdserverpb.Compare_LEASE, Key: []byte(key),
		TargetUnion: &etcdserverpb.Compare_Lease{Lease: int64(r.lease)},
	}
	_, _, err := r.writer.commit(ctx, key, []*etcdserverpb.Compare{ours}, []*etcdserverpb.RequestOp{remove(key)})
	return err
}
