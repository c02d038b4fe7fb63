package dnat

import (
	"context"
	"errors"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
)

// judge returns a function that reports whether a flow is stale. Each call to that function uses
// the current desired state, because a frontend may be restored and get correct flows while
// conntrack is being read.
func (fl *Flows) judge(now time.Time) func(*conntrack.Flow) bool {
	return func(flow *conntrack.Flow) bool {
		fl.mu.Lock()
		defer fl.mu.Unlock()
		fl.placeLocked(flow)
		k := flow.Frontend()
		f := fl.wanted[k]
		switch {
		case fl.own != nil && fl.isOwnLocked(flow):
			return false
		case fl.own != nil && f != nil && f.Serves() && k.Proto == balancer.UDP:
			return true // the client continues to send, and its flow belongs to this mode
		case (f == nil || f.Backend(flow.Backend()) == nil) && isAccepted(flow):
			return false
		}
		return stale(flow, f, fl.leaving[k].keeps(flow.Backend(), now), now)
	}
}

// isOwnLocked reports whether a flow's packets reach a socket of this process.
func (fl *Flows) isOwnLocked(flow *conntrack.Flow) bool {
	if !flow.Status.Has(conntrack.DstNAT) {
		return true
	}
	f := fl.wanted[flow.Frontend()]
	return (f == nil || f.Backend(flow.Backend()) == nil) && fl.own(flow.Backend().Addr())
}

// leads reports whether a flow belongs to a current or earlier frontend, and a mode that translates
// addresses chose its destination.
func (fl *Flows) leads(flow *conntrack.Flow) bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.placeLocked(flow)
	k := flow.Frontend()
	known := fl.wanted[k] != nil || fl.leaving[k] != nil
	return known && flow.Status.Has(conntrack.DstNAT) && (fl.own == nil || !fl.isOwnLocked(flow))
}

// again schedules a check of UDP flows if this process terminates them.
func (fl *Flows) again() {
	if fl.own == nil {
		return
	}
	fl.mu.Lock()
	for k := range fl.wanted {
		if k.Proto == balancer.UDP {
			fl.due[k] = time.Now()
		}
	}
	fl.mu.Unlock()
	fl.loop.Look()
}

// stale reports whether a flow to a frontend must be removed. f is nil if the frontend does not
// exist. kept reports whether the flow may continue because it belongs to an earlier frontend that
// is still draining. An unanswered flow is removed as soon as its backend gets no new connections,
// because the client then retries and gets another backend.
func stale(flow *conntrack.Flow, f *balancer.Frontend, kept bool, now time.Time) bool {
	if !flow.Status.Has(conntrack.DstNAT) && flow.Backend() == flow.Orig.Dst {
		// The flow is older than the service. An answered connection does not belong to vipd. With
		// dr and tunnel, conntrack does not translate flows, and replies bypass this node, so flows
		// can't be distinguished.
		direct := f != nil && f.Forward.Direct()
		return f != nil && !direct && f.Serves() && (f.Proto == balancer.UDP || !flow.Status.Has(conntrack.SeenReply))
	}
	if f != nil {
		if b := f.Backend(flow.Backend()); b != nil {
			return b.Expired(now) || b.State != balancer.Active && !flow.Answered()
		}
	}
	return !kept || flow.Proto == balancer.UDP || !flow.Answered()
}

// retryCut is the pause before a failed removal is retried.
const retryCut = time.Second

// sweep removes stale flows, and returns the time of the next sweep.
func (fl *Flows) sweep(ctx context.Context) (next time.Time) {
	now := time.Now()
	fl.mu.Lock()
	keys := map[balancer.Key]bool{}
	for k, at := range fl.due {
		if !at.After(now) {
			keys[k] = true
		}
	}
	fl.mu.Unlock()
	var err error
	if len(keys) > 0 {
		_, err = fl.conn.Cut(ctx, keys, fl.judge(now))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fl.log.Warn("connections to removed endpoints can't be ended; trying again", "err", err)
	}
	took := time.Since(now)
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.pause = min(max(minPause, sweepShare*took), maxPause)
	for k := range keys {
		switch {
		case fl.due[k].After(now): // a change has postponed the check in the meantime
		case err != nil:
			fl.due[k] = now.Add(retryCut)
		default:
			delete(fl.due, k)
			fl.dueLocked(k, now)
		}
	}
	fl.due = dataplane.Shrink(fl.due)
	for _, at := range fl.due {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}
