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

// HealthVoter says in etcd that a node takes part in the fleet's health checks, and what it has found, all under one
// lease. What says the same is never written twice, and many votes go into one transaction.
type HealthVoter struct {
	lease *client.Lease
	node  string
	wake  wake.Signal // holds a token: there is something to write
	// Report hears whether the node's votes are told in etcd: nil, or why not. Nil: not reported. It is called with each
	// change only, by the goroutine of Run.
	Report func(error)
	// Former is the number of a lease that this daemon had before, and can't renew any more, as after a crash; 0 means none. What
	// the node said under it is withdrawn when the first thing is said, without waiting for the lease's end.
	Former int64
	// Granted, unless nil, hears the number of each lease before anything is written under it: the Former of the next run.
	// Like Report it is called by the goroutine of Run.
	Granted func(lease int64)

	mu    sync.Mutex // guards live, votes and board
	live  quorum.Checker
	votes snap.Map[balancer.Target, *quorum.Vote]
	board *quorum.Board // what is to be compared with written; nil means nothing

	// The rest belongs to Run. written is what etcd has, under the lease of that number; said is the text of the node's
	// own key.
	written        snap.Map[balancer.Target, *quorum.Vote]
	writtenUnder   int64
	writtenChecker []byte
	// writtenAt is when something was written last.
	writtenAt time.Time
}

// Votes are written mostVotes at a time (etcd's bound is 128 operations), and for a turn at most between two looks at the
// lease. After each lot the voter waits as long as it took, so that hosts that come back together don't bury etcd.
const (
	maxVotes = 100
	maxTurn  = 500 * time.Millisecond
)

// HealthVoter returns one that has not done anything yet. The node's votes are gone ttl after the end of a daemon that
// could not say so, rounded up to seconds.
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

// Set says what the node can check, and all its votes, by target without the node. It never blocks.
func (v *HealthVoter) Set(live quorum.Checker, votes snap.Map[balancer.Target, *quorum.Vote]) {
	v.mu.Lock()
	news := v.live != live || v.votes != votes
	v.live, v.votes = live, votes
	v.mu.Unlock()
	if news {
		v.wake.Send()
	}
}

// SetBoard says what is on the board. Votes of this node that are missing there, or others, are written again: another client has
// removed them, or etcd was restored from an old snapshot. It never blocks.
func (v *HealthVoter) SetBoard(b quorum.Board) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.board = &b
}

// Run keeps the node's keys in etcd, again whenever they are lost, until ctx ends; then they go. Where another daemon has
// them, nothing is written, and Report says so once that can't be this daemon's former run any more.
func (v *HealthVoter) Run(ctx context.Context) {
	v.lease.Hold(ctx, v.write, v.wake, func() time.Duration { return 0 }, v.Report)
}

// write sees to it that etcd has the node's own key, and then its votes.
func (v *HealthVoter) write(ctx context.Context) error {
	v.mu.Lock()
	live, votes := v.live, v.votes
	v.mu.Unlock()
	if v.writtenUnder != v.lease.ID {
		v.writtenUnder, v.writtenChecker, v.written = v.lease.ID, nil, snap.Map[balancer.Target, *quorum.Vote]{}
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

// writeChecker writes the node's own key where it is missing or says something else. Where it was missing, the votes are taken
// for lost as well.
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

// replaceFormer takes the node's own key over from the former lease and removes the votes that stand under it, at once: the node
// is never seen to be gone, nor with votes without a voter.
func (v *HealthVoter) replaceFormer(ctx context.Context, first []*etcdserverpb.RequestOp) (*client.Foreign, error) {
	key := v.lease.Key
	own := v.lease.Client.Keys.HealthOf(v.node)
	all := append(slices.Clone(first), client.RemoveRange(own, key), client.RemoveRange(key+"\x00", clientv3.GetPrefixRangeEnd(own)))
	return v.lease.Attempt(ctx, []*etcdserverpb.Compare{client.Under(key, v.Former)}, all)
}

// findLost looks for votes on the board that are not what was written, once that had time enough to get there.
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
	for ballot, vote := range b.Votes.All() {
		if string(ballot.Node) != v.node {
			continue
		}
		missing = missing.Delete(ballot.Target)
		if written := v.written.At(ballot.Target); written == nil || written.Verdict != vote.Verdict || !written.Since.Round(precision).Equal(vote.Since) {
			v.written = v.written.Set(ballot.Target, unknownVote())
		}
	}
	for t := range missing.Keys() {
		v.written = v.written.Set(t, unknownVote())
	}
}

// nextBatch returns the next targets whose votes are to be written or removed, and what does that.
func (v *HealthVoter) nextBatch(votes snap.Map[balancer.Target, *quorum.Vote]) (lot map[balancer.Target]*quorum.Vote, then []*etcdserverpb.RequestOp) {
	lot = map[balancer.Target]*quorum.Vote{}
	for t, c := range snap.Diff(v.written, votes) {
		key := v.lease.Client.Keys.Health(v.node, t)
		if c.HasNew {
			text, err := encodeVote(c.New)
			if err != nil {
				continue // a time that JSON can't hold; no clock shows it
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

// unknownVote stands for a vote that may be written or not.
func unknownVote() *quorum.Vote { return &quorum.Vote{} }

// putBatch writes one lot, provided that the node's own key is still under the lease.
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
		return client.ErrPatience // the key was taken since; the next attempt finds out by which lease
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
