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

// HealthVoter writes the part of a node in the fleet's health checks, and its votes, under one
// lease. It writes equal votes only once, and many votes in one transaction.
type HealthVoter struct {
	lease *client.Lease
	node  string
	wake  wake.Signal // holds a token: there is something to write
	// Report receives why the node's votes are not in etcd; nil means that they are. It is called
	// after each change by the goroutine of Run. If nil, nothing is reported.
	Report func(error)
	// Former is a lease of an earlier run of this daemon, which crashed; 0 means none. Its votes
	// are removed by the first write, without waiting for its end.
	Former int64
	// Granted receives each lease before anything is written under it: the Former of the next run.
	// If nil, nothing is called. It is called by the goroutine of Run.
	Granted func(lease int64)

	mu    sync.Mutex // guards live, votes and board
	live  quorum.Checker
	votes snap.Map[balancer.Target, *quorum.Vote]
	board *quorum.Board // what is to be compared with written; nil means nothing

	// The rest belongs to Run. written has the votes that etcd has under the lease writtenUnder;
	// writtenChecker is the value of the node's own key.
	written        snap.Map[balancer.Target, *quorum.Vote]
	writtenUnder   int64
	writtenChecker []byte
	// writtenAt is the time of the last write.
	writtenAt time.Time
}

// Votes are written in batches of maxVotes, because etcd accepts 128 operations, and for maxTurn
// between two checks of the lease. After each batch the voter waits as long as the batch took, so
// hosts that return together don't overload etcd.
const (
	maxVotes = 100
	maxTurn  = 500 * time.Millisecond
)

// HealthVoter returns a voter that does nothing until Run. If a daemon crashes, its votes end after
// ttl, rounded up to seconds.
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

// Set replaces the checks that the node can run, and all its votes, by target without the node. It
// never blocks.
func (v *HealthVoter) Set(live quorum.Checker, votes snap.Map[balancer.Target, *quorum.Vote]) {
	v.mu.Lock()
	news := v.live != live || v.votes != votes
	v.live, v.votes = live, votes
	v.mu.Unlock()
	if news {
		v.wake.Send()
	}
}

// SetBoard passes the board to the voter. Votes of this node that are missing there or differ are
// written again: another client has removed them, or etcd was restored. It never blocks.
func (v *HealthVoter) SetBoard(b quorum.Board) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.board = &b
}

// Run keeps the node's keys in etcd until ctx ends, and removes them then. If another daemon has
// them, it writes nothing, and reports that once the other can't be an earlier run of this daemon.
func (v *HealthVoter) Run(ctx context.Context) {
	v.lease.Hold(ctx, v.write, v.wake, func() time.Duration { return 0 }, v.Report)
}

// write writes the node's own key if etcd lacks it, and then its votes.
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

// writeChecker writes the node's own key if it is missing or differs. If it was missing, the votes
// are missing as well.
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

// replaceFormer moves the node's own key from the former lease to this one and removes the votes
// under the former lease, in one transaction. So the node never seems to be gone, and has no votes
// without a voter.
func (v *HealthVoter) replaceFormer(ctx context.Context, first []*etcdserverpb.RequestOp) (*client.Foreign, error) {
	key := v.lease.Key
	own := v.lease.Client.Keys.HealthOf(v.node)
	all := append(slices.Clone(first), client.RemoveRange(own, key), client.RemoveRange(key+"\x00", clientv3.GetPrefixRangeEnd(own)))
	return v.lease.Attempt(ctx, []*etcdserverpb.Compare{client.Under(key, v.Former)}, all)
}

// findLost finds votes on the board that differ from the written ones, once these had enough time
// to arrive there.
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

// nextBatch returns the next targets whose votes must be written or removed, and the operations.
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

// unknownVote represents a vote that may be written or not.
func unknownVote() *quorum.Vote { return &quorum.Vote{} }

// putBatch writes a batch if the node's own key is still under the lease.
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
