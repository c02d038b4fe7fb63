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

// Presence says in etcd that a node is there and how it is (nodes/NODE/live and nodes/NODE/status), both under one lease.
type Presence struct {
	hostAddresses
	lease     *client.Lease
	statusKey string
	live      []byte
	wake      wake.Signal // holds a token: there is a status to write
	// Report hears whether the node is told in etcd: nil, or why not. Nil: not reported. It is called with each change
	// only, by the goroutine of Run.
	Report func(error)

	mu     sync.Mutex // guards status
	status *schema.NodeStatus

	// The rest belongs to Run. encoded is status as text, which takes long where there are many drains: a lease must not wait for it twice.
	encoded encodedStatus
	// written is the status that etcd has, but for its time; nil means none.
	written []byte
	// took is how long the last writing took.
	took time.Duration
}

// statusPause is the least time between two writings of a status. Where etcd takes long for one, because a large fleet
// writes at the same time, it is statusShare as long, up to statusSlowest.
const (
	statusPause   = time.Second
	statusShare   = 5
	statusSlowest = 10 * time.Second
)

// Presence returns one that has not done anything yet. The node is gone ttl after the end of a daemon that could not say
// so, rounded up to seconds.
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

// Tell says how the node is: the newest status is written, at most once a second and less often where etcd is slow, if
// it says something else than the one before. It never blocks.
func (p *Presence) Tell(s schema.NodeStatus) {
	p.mu.Lock()
	p.status = &s
	p.mu.Unlock()
	p.wake.Send()
}

// Run keeps the node's keys in etcd, again whenever they are lost, until ctx ends; then they go. Where another daemon has
// them, nothing is written, and Report says so once that can't be this daemon's former run any more.
func (p *Presence) Run(ctx context.Context) {
	p.lease.Hold(ctx, p.write, p.wake, p.minPause, p.Report)
}

// minPause is how long to wait after one writing until the next.
func (p *Presence) minPause() time.Duration {
	return min(max(statusPause, statusShare*p.took), statusSlowest)
}

// write sees to it that etcd has both keys.
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
	p.written = nil // it may be written and not be told
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

// writeKeys writes all keys where they are missing, and the status where it is not known to be there already.
func (p *Presence) writeKeys(ctx context.Context, all []*etcdserverpb.RequestOp, known bool) (*client.Foreign, error) {
	if known && len(all) > 1 {
		other, err := p.lease.Write(ctx, all, nil, p.statusKey)
		if other == nil || err != nil || other.Lease != p.lease.ID {
			return other, err
		}
		// The status alone was removed.
	}
	return p.lease.Write(ctx, all, all[1:])
}

// encodedStatus is the text of a status, and what it says apart from its time.
type encodedStatus struct {
	status     *schema.NodeStatus
	text, bare []byte
}

// encode makes it that of a status, which is not nil and not changed any more.
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
