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

// Registrar keeps an endpoint in etcd with a lease. Only one goroutine may use it.
type Registrar struct {
	lease    *client.Lease
	endpoint balancer.Endpoint
	// written reports whether this registrar has written the key. If so, it no longer overwrites
	// another registrar's key.
	written bool
	// stale reports whether the key may differ from the endpoint.
	stale bool
	// Report receives the reason why the endpoint is not registered, or nil if it is registered. It
	// is called whenever the reason changes, and after each write of the key. It may be nil.
	Report func(error)
}

// ErrHeld means that another registrar holds the key.
var ErrHeld = errors.New("held by another registrar: give each registrar its own ID")

// Registrar returns a registrar that does nothing until Run is called. If its process crashes, the
// endpoint is removed after ttl, rounded up to seconds. It returns an error if vipd would refuse
// the endpoint.
func (w *Writer) Registrar(id balancer.EndpointID, endpoint balancer.Endpoint, ttl time.Duration) (*Registrar, error) {
	if !id.Service.Valid() {
		return nil, fmt.Errorf("%q is not a valid service name: names are DNS labels of a-z, 0-9 and -", id.Service)
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

// checkEndpoint returns an error if readers would refuse the endpoint.
func checkEndpoint(keys schema.Keys, id balancer.EndpointID, endpoint balancer.Endpoint) error {
	endpoint.Draining = true // Drain sets it later, which makes the text longer
	text, err := schema.Encode(balancer.EncodeEndpoint(&endpoint))
	if err != nil {
		return err
	}
	key := keys.Endpoint(id)
	if err := schema.CheckEntry(key, text); err != nil {
		return err
	}
	subject := schema.Subject{Kind: schema.EndpointKind, Of: id.Service, ID: id}
	if value, problems := schema.DecodeValue(subject, text, balancer.Origin{Key: key}, nil); value == nil {
		return refusal(problems)
	}
	return nil
}

// Run registers the endpoint, and registers it again whenever it is missing, until ctx ends. The
// first write replaces another holder's key, because this registrar may have been restarted. Later,
// Run reports another registrar's key, but does not replace it. The endpoint remains until Leave is
// called or the lease ends.
func (r *Registrar) Run(ctx context.Context) {
	r.lease.Keep(ctx, r.check, nil, nil, r.Report)
}

// check registers the endpoint if it is not registered.
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
	// When Run ends, this write must not be interrupted. Otherwise the registrar would not know
	// about the endpoint, and Drain would skip it.
	ctx, cancel := r.lease.Limit(context.WithoutCancel(ctx))
	defer cancel()
	revision, _, err := r.lease.Client.Commit(ctx, r.lease.Key, nil, []*etcdserverpb.RequestOp{op})
	if err == nil {
		r.written = true
		r.stale = false
		r.lease.Revision = revision
	}
	return err
}

func (r *Registrar) op() (*etcdserverpb.RequestOp, error) {
	text, err := schema.Encode(balancer.EncodeEndpoint(&r.endpoint))
	return r.lease.Put(r.lease.Key, text), err
}

// rewrite writes the endpoint if it is missing or differs.
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

// Revision returns the revision at which the key was last written, or 0 before the first write. It
// may be called from Report, or while Run is not running.
func (r *Registrar) Revision() int64 { return r.lease.Revision }

// Placed reports whether the endpoint was written. It must not be called while Run is running.
func (r *Registrar) Placed() bool { return r.written }

// Drain marks the endpoint as draining and keeps it registered. If this fails, Run retries it.
// Drain does not change another registrar's key. It must not be called while Run is running.
func (r *Registrar) Drain(ctx context.Context) error {
	r.endpoint.Draining, r.stale = true, r.stale || !r.endpoint.Draining
	if err := r.lease.Renew(ctx); err != nil {
		return err
	}
	return r.rewrite(ctx)
}

// Leave removes the endpoint. It does not revoke the lease, because readers treat an endpoint whose
// key is deleted before its lease ends as removed on purpose. Leave does not change another
// registrar's key. It must not be called while Run is running.
func (r *Registrar) Leave(ctx context.Context) error {
	if r.lease.ID == 0 {
		return nil // the endpoint was never written
	}
	_, _, err := r.lease.Client.Commit(ctx, r.lease.Key, []*etcdserverpb.Compare{r.lease.Ours(r.lease.Key)}, []*etcdserverpb.RequestOp{client.Remove(r.lease.Key)})
	return err
}
