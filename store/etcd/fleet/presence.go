package fleet

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/balancer/lib/wake"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// Presence publishes that a node is live, and its status (nodes/NODE/live and nodes/NODE/status),
// with a single lease.
type Presence struct {
	hostAddresses
	lease     *client.Lease
	statusKey string
	live      []byte
	wake      wake.Signal // sent if there is a status to write
	// Report receives the reason why the node is not in etcd, or nil if it is. Run's goroutine
	// calls it after each change. It may be nil.
	Report func(error)

	mu     sync.Mutex // guards status
	status *schema.NodeStatus

	// The fields below belong to Run. encoded is the encoded status. It is stored because encoding
	// many drains takes long, and must not delay the lease twice.
	encoded encodedStatus
	// written is the status in etcd, without its time, or nil.
	written []byte
	// took is how long the last write took.
	took time.Duration
}

// statusPause is the minimum time between writes of a status. If etcd is slow because a large fleet
// writes at the same time, the pause is statusShare times the duration of the last write, but at
// most statusSlowest.
const (
	statusPause   = time.Second
	statusShare   = 5
	statusSlowest = 10 * time.Second
)

// Presence returns a Presence that does nothing until Run is called. If a daemon crashes, its node
// is removed after ttl, rounded up to seconds.
func (r *Registry) Presence(node string, live schema.NodeLive, ttl time.Duration) (*Presence, error) {
	if err := schema.CheckNode(node); err != nil {
		return nil, err
	}
	text, err := schema.Encode(live)
	if err != nil {
		return nil, err
	}
	lease, err := r.client.NewLease(r.keys.NodeLive(node), ttl)
	if err != nil {
		return nil, err
	}
	w := wake.New()
	p := &Presence{hostAddresses: hostAddresses{key: r.keys.Host(node), wake: w}, lease: lease, statusKey: r.keys.NodeStatus(node), live: text, wake: w}
	lease.What += " or " + p.statusKey
	return p, nil
}

// SetStatus sets the node's status. If the newest status differs from the written status, it is
// written, but at most once a second, and less often if etcd is slow. It never blocks.
func (p *Presence) SetStatus(s schema.NodeStatus) {
	p.mu.Lock()
	p.status = &s
	p.mu.Unlock()
	p.wake.Send()
}

// Run keeps the node's keys in etcd until ctx ends, and then removes them. If another daemon holds
// the keys, Run writes nothing. It reports the other daemon once that daemon can't be an earlier
// run of this daemon.
func (p *Presence) Run(ctx context.Context) {
	p.lease.Hold(ctx, p.write, p.wake, p.minPause, p.Report)
}

// minPause returns the minimum pause after a write.
func (p *Presence) minPause() time.Duration {
	return min(max(statusPause, statusShare*p.took), statusSlowest)
}

// write writes the node's keys that are missing from etcd or have changed.
func (p *Presence) write(ctx context.Context) error {
	p.mu.Lock()
	status := p.status
	p.mu.Unlock()
	first := []*etcdserverpb.RequestOp{p.lease.Put(p.lease.Key, p.live)}
	var says []byte
	if status != p.encoded.status {
		if err := p.encoded.encode(status); err != nil {
			return err
		}
	}
	if status != nil {
		first, says = append(first, p.lease.Put(p.statusKey, p.encoded.text)), p.encoded.bare
	}
	was := p.written
	p.written = nil // the write may have succeeded without an answer
	began := time.Now()
	defer func() { p.took = time.Since(began) }()
	other, err := p.writeKeys(ctx, first, bytes.Equal(says, was))
	switch {
	case err != nil:
		return err
	case other != nil:
		return p.lease.HeldBy(*other)
	}
	p.written, p.lease.Rival = says, client.Foreign{}
	return p.hostAddresses.write(ctx, p.lease)
}

// writeKeys writes all keys if they are missing. It writes the status unless etcd is known to have
// it.
func (p *Presence) writeKeys(ctx context.Context, all []*etcdserverpb.RequestOp, known bool) (*client.Foreign, error) {
	if known && len(all) > 1 {
		other, err := p.lease.Write(ctx, all, nil, p.statusKey)
		if other == nil || err != nil || other.Lease != p.lease.ID {
			return other, err
		}
		// Only the status was removed.
	}
	return p.lease.Write(ctx, all, all[1:])
}

// encodedStatus is an encoded status, with and without its time.
type encodedStatus struct {
	status     *schema.NodeStatus
	text, bare []byte
}

// encode encodes a status. The status must not be nil, and must not be modified.
func (e *encodedStatus) encode(status *schema.NodeStatus) (err error) {
	s := *status
	if len(s.Problems) > schema.MaxNodeProblems {
		s.Problems = s.Problems[:schema.MaxNodeProblems]
	}
	if n := len(s.Drains); n > schema.MaxNodeDrains {
		s.Drains = slices.Clone(s.Drains)
		slices.SortStableFunc(s.Drains, func(a, b schema.NodeDrain) int { return cmp.Compare(b.Active, a.Active) })
		s.Drains, s.DrainsOmitted = s.Drains[:schema.MaxNodeDrains], n-schema.MaxNodeDrains
	}
	if e.text, err = schema.Encode(s); err != nil {
		return err
	}
	s.At = time.Time{}
	if e.bare, err = schema.Encode(s); err == nil {
		e.status = status
	}
	return err
}
