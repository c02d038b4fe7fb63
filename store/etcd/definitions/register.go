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

// Registrar keeps one endpoint in etcd under a lease. It belongs to one goroutine.
type Registrar struct {
	lease    *client.Lease
	endpoint balancer.Endpoint
	// placed: the key was written once, and is not taken from others any more.
	written bool
	// stale: the key may say something else than endpoint.
	stale bool
	// Report hears whether the endpoint is registered: nil, or why not. Nil: not reported. It is called with each
	// change, and each time that the key was written.
	Report func(error)
}

// ErrHeld says that another registrar has the key.
var ErrHeld = errors.New("held by another registrar: give each its own ID")

// Registrar returns one that has not done anything yet. The endpoint is gone ttl after the registrar's end, rounded up
// to seconds. An endpoint that vipd would refuse to read is an error.
func (w *Writer) Registrar(id balancer.EndpointID, endpoint balancer.Endpoint, ttl time.Duration) (*Registrar, error) {
	if !id.Service.Valid() {
		return nil, fmt.Errorf("%q names no service: names are DNS labels of a-z, 0-9 and -", id.Service)
	}
	if err := schema.CheckID(id.ID); err != nil {
		return nil, err
	}
	if err := checkEndpoint(w.keys, id, endpoint); err != nil {
		return nil, err
	}
	lease, err := w.client.NewLease(w.keys.Endpoint(id), ttl)
	if err != nil {
		return nil, err
	}
	return &Registrar{lease: lease, endpoint: endpoint}, nil
}

// checkEndpoint refuses an endpoint that those who read its key would refuse.
func checkEndpoint(keys schema.Keys, id balancer.EndpointID, endpoint balancer.Endpoint) error {
	endpoint.Draining = true // Drain says so later, which makes the text longer
	text, err := schema.Encode(balancer.EncodeEndpoint(&endpoint))
	if err != nil {
		return err
	}
	key := keys.Endpoint(id)
	if err := schema.CheckEntry(key, text); err != nil {
		return err
	}
	subject := schema.Subject{Kind: schema.EndpointKind, Of: id.Service, ID: id}
	if says, problems := schema.DecodeValue(subject, text, balancer.Origin{Key: key}, nil); says == nil {
		return refusal(problems)
	}
	return nil
}

// Run registers the endpoint, again whenever it is gone, until ctx ends. At first it takes the key from its holder,
// as a restarted registrar must; from then on it leaves the key to another registrar that holds it by then, and says so
// in Report. The endpoint stays until Leave or until the lease ends.
func (r *Registrar) Run(ctx context.Context) {
	r.lease.Keep(ctx, r.check, nil, nil, r.Report)
}

// check sees to it that the endpoint is registered.
func (r *Registrar) check(ctx context.Context) error {
	before := r.lease.Revision
	err := r.register(ctx)
	r.lease.Reported = r.lease.Reported && r.lease.Revision == before
	return err
}

func (r *Registrar) register(ctx context.Context) error {
	if r.written {
		return r.rewrite(ctx)
	}
	op, err := r.op()
	if err != nil {
		return err
	}
	// The end of Run does not cut it short: what is there without our knowing it would not be drained.
	ctx, cancel := r.lease.Limit(context.WithoutCancel(ctx))
	defer cancel()
	revision, _, err := r.lease.Client.Commit(ctx, r.lease.Key, nil, []*etcdserverpb.RequestOp{op})
	if err == nil {
		r.written, r.stale, r.lease.Revision = true, false, revision
	}
	return err
}

func (r *Registrar) op() (*etcdserverpb.RequestOp, error) {
	text, err := schema.Encode(balancer.EncodeEndpoint(&r.endpoint))
	return r.lease.Put(r.lease.Key, text), err
}

// rewrite writes the endpoint where it is not registered, or says something else there.
func (r *Registrar) rewrite(ctx context.Context) error {
	op, err := r.op()
	if err != nil {
		return err
	}
	first := []*etcdserverpb.RequestOp{op}
	change := first
	if !r.stale {
		change = nil
	}
	other, err := r.lease.Write(ctx, first, change)
	if err == nil && other != nil {
		return fmt.Errorf("%s is %w", r.lease.Key, ErrHeld)
	}
	r.stale = r.stale && err != nil
	return err
}

// Revision returns that of the last write of the key; 0 means there was none. It is for Report, and for when Run does not run.
func (r *Registrar) Revision() int64 { return r.lease.Revision }

// Placed reports whether the endpoint was written once. Run must not run meanwhile.
func (r *Registrar) Placed() bool { return r.written }

// Drain says that the endpoint takes no new connections, and goes on being registered so; where this fails, Run does it
// when it can. Run must not run meanwhile, and another registrar's key is left alone.
func (r *Registrar) Drain(ctx context.Context) error {
	r.endpoint.Draining, r.stale = true, r.stale || !r.endpoint.Draining
	if err := r.lease.Renew(ctx); err != nil {
		return err
	}
	return r.rewrite(ctx)
}

// Leave takes the endpoint out. Its lease ends by itself: a key that goes while its lease lives has left on purpose.
// Run must not run meanwhile, and another registrar's key is left alone.
func (r *Registrar) Leave(ctx context.Context) error {
	if r.lease.ID == 0 {
		return nil // nothing of it is there
	}
	_, _, err := r.lease.Client.Commit(ctx, r.lease.Key, []*etcdserverpb.Compare{r.lease.Ours(r.lease.Key)}, []*etcdserverpb.RequestOp{client.Remove(r.lease.Key)})
	return err
}
