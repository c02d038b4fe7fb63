package fleet

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// HealthVoter writes a node's presence in the fleet's health checks, and its votes, with a single
// lease. It writes an unchanged vote only once, and writes many votes in a transaction.
type HealthVoter struct {
	lease *client.Lease
	node  string
	wake  wake.Signal // sent if there is something to write
	// Report receives the reason why the node's votes are not in etcd, or nil if they are. Run's
	// goroutine calls it after each change. It may be nil.
	Report func(error)
	// If an earlier run of this daemon crashed, Former is that run's lease. Otherwise it is 0. The
	// first write removes its votes without waiting for the lease to expire.
	Former int64
	// Granted receives each lease before any key is written with it. It should be the Former of the
	// next run. Run's goroutine calls it. It may be nil.
	Granted func(lease int64)

	mu    sync.Mutex // guards live, votes and board
	live  quorum.Checker
	votes snap.Map[balancer.Target, *quorum.Vote]
	board *quorum.Board // the board to compare with written, or nil

	// The fields below belong to Run. written holds the votes that etcd has with the lease
	// writtenUnder. writtenChecker is the value of the node's own key.
	written        snap.Map[balancer.Target, *quorum.Vote]
	writtenUnder   int64
	writtenChecker []byte
	// writtenAt is when keys were last written.
	writtenAt time.Time
}

// Votes are written in batches of at most maxVotes, because etcd accepts 128 operations. The lease
// is checked at least every maxTurn. After each batch, the voter pauses for the duration of the
// batch, so hosts that reconnect at the same time do not overload etcd.
const (
	maxVotes = 100
	maxTurn  = 500 * time.Millisecond
)

// HealthVoter returns a voter that does nothing until Run is called. If a daemon crashes, its votes
// are removed after ttl, rounded up to whole seconds.
func (r *Registry) HealthVoter(node string, live quorum.Checker, ttl time.Duration) (*HealthVoter, error) {
	if err := schema.CheckNode(node); err != nil {
		return nil, err
	}
	lease, err := r.client.NewLease(r.keys.HealthLive(node), ttl)
	if err != nil {
		return nil, err
	}
	lease.What = r.keys.HealthOf(node)
	return &HealthVoter{lease: lease, node: node, live: live, wake: wake.New()}, nil
}

// Set replaces the node's presence and all its votes. It never blocks.
func (v *HealthVoter) Set(live quorum.Checker, votes snap.Map[balancer.Target, *quorum.Vote]) {
	v.mu.Lock()
	news := v.live != live || v.votes != votes
	v.live, v.votes = live, votes
	v.mu.Unlock()
	if news {
		v.wake.Send()
	}
}

// SetBoard passes the current board to the voter. If the board shows that this node's votes are
// missing or different, they are written again, because another client has removed them or etcd was
// restored. It never blocks.
func (v *HealthVoter) SetBoard(b quorum.Board) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.board = &b
}

// Run keeps the node's keys in etcd until ctx ends, and then removes them. If another daemon holds
// the keys, Run writes nothing. It reports the other daemon once that daemon can't be an earlier
// run of this daemon.
func (v *HealthVoter) Run(ctx context.Context) {
	v.lease.Hold(ctx, v.write, v.wake, func() time.Duration { return 0 }, v.Report)
}

// write writes the node's own key if it is missing or different, and then the votes that are not in
// etcd.
func (v *HealthVoter) write(ctx context.Context) error {
	v.mu.Lock()
	live, votes := v.live, v.votes
	v.mu.Unlock()
	if v.writtenUnder != v.lease.ID {
		v.writtenUnder = v.lease.ID
		v.writtenChecker = nil
		v.written = snap.Map[balancer.Target, *quorum.Vote]{}
		if v.Granted != nil {
			v.Granted(v.lease.ID)
		}
	}
	if err := v.writeChecker(ctx, live); err != nil {
		return err
	}
	v.findLost()
	for began := time.Now(); ; {
		lot, then := v.nextBatch(votes)
		if len(lot) == 0 {
			return nil
		}
		if time.Since(began) > maxTurn {
			v.wake.Send()
			return nil
		}
		sent := time.Now()
		if err := v.putBatch(ctx, lot, then); err != nil {
			return err
		}
		if len(lot) == maxVotes {
			wake.Sleep(ctx, time.Since(sent))
		}
	}
}

// writeChecker writes the node's own key if it is missing or different. If the key was missing, the
// votes are also missing, and are marked as unwritten.
func (v *HealthVoter) writeChecker(ctx context.Context, live quorum.Checker) error {
	text, err := encodeChecker(live)
	if err != nil {
		return err
	}
	first := []*etcdserverpb.RequestOp{v.lease.Put(v.lease.Key, text)}
	change := first
	if bytes.Equal(text, v.writtenChecker) {
		change = nil
	}
	revision := v.lease.Revision
	other, err := v.lease.Write(ctx, first, change)
	if err == nil && other != nil && v.Former != 0 && other.Lease == v.Former {
		other, err = v.replaceFormer(ctx, first)
	}
	if err != nil || other != nil {
		v.writtenChecker = nil
		if err == nil {
			err = v.lease.HeldBy(*other)
		}
		return err
	}
	if change == nil && v.lease.Revision != revision {
		v.written = snap.Map[balancer.Target, *quorum.Vote]{}
	}
	v.writtenChecker, v.lease.Rival = text, client.Foreign{}
	return nil
}

// replaceFormer moves the node's own key from the former lease to this lease, and removes the
// former lease's votes, in a single transaction. So the node never seems to be missing, and never
// has votes without a voter.
func (v *HealthVoter) replaceFormer(ctx context.Context, first []*etcdserverpb.RequestOp) (*client.Foreign, error) {
	key := v.lease.Key
	own := v.lease.Client.Keys.HealthOf(v.node)
	all := append(slices.Clone(first), client.RemoveRange(own, key), client.RemoveRange(key+"\x00", clientv3.GetPrefixRangeEnd(own)))
	return v.lease.Attempt(ctx, []*etcdserverpb.Compare{client.Under(key, v.Former)}, all)
}

// findLost finds votes that are missing or different on the board although they had enough time to
// arrive there.
func (v *HealthVoter) findLost() {
	v.mu.Lock()
	b := v.board
	if b == nil || !b.Connected || time.Since(v.writtenAt) < v.lease.TTL/3 {
		v.mu.Unlock()
		return
	}
	v.board = nil
	v.mu.Unlock()
	missing := v.written
	for voteKey, vote := range b.Votes.All() {
		if string(voteKey.Node) != v.node {
			continue
		}
		missing = missing.Delete(voteKey.Target)
		if written := v.written.At(voteKey.Target); written == nil || written.Verdict != vote.Verdict || !written.Since.Round(precision).Equal(vote.Since) {
			v.written = v.written.Set(voteKey.Target, unknownVote())
		}
	}
	for t := range missing.Keys() {
		v.written = v.written.Set(t, unknownVote())
	}
}

// nextBatch returns the next targets whose votes must be written or removed, with the operations.
func (v *HealthVoter) nextBatch(votes snap.Map[balancer.Target, *quorum.Vote]) (lot map[balancer.Target]*quorum.Vote, then []*etcdserverpb.RequestOp) {
	lot = map[balancer.Target]*quorum.Vote{}
	for t, c := range snap.Diff(v.written, votes) {
		key := v.lease.Client.Keys.Health(v.node, t)
		if c.HasNew {
			text, err := encodeVote(c.New)
			if err != nil {
				continue // JSON can't represent this time, which no clock can return
			}
			then = append(then, v.lease.Put(key, text))
		} else {
			then = append(then, client.Remove(key))
		}
		if lot[t] = c.New; len(lot) == maxVotes {
			break
		}
	}
	return lot, then
}

// unknownVote represents a vote for which it is unknown whether it was written.
func unknownVote() *quorum.Vote { return &quorum.Vote{} }

// putBatch writes a batch if the node's own key still has the lease.
func (v *HealthVoter) putBatch(ctx context.Context, lot map[balancer.Target]*quorum.Vote, then []*etcdserverpb.RequestOp) error {
	for t := range lot {
		v.written = v.written.Set(t, unknownVote())
	}
	defer func() { v.writtenAt = time.Now() }()
	ours, err := v.lease.Attempt(ctx, []*etcdserverpb.Compare{v.lease.Ours(v.lease.Key)}, then)
	switch {
	case err != nil:
		return err
	case ours != nil:
		v.writtenChecker = nil
		return client.ErrPatience // another lease holds the key, which the next attempt will report
	}
	for t, vote := range lot {
		if vote != nil {
			v.written = v.written.Set(t, vote)
		} else {
			v.written = v.written.Delete(t)
		}
	}
	return nil
}
