package guard

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/worker"
)

// restarts makes conntrack forget the flows of clients in the kernel's set, while a family has dead
// endpoints.
type restarts struct {
	log  *slog.Logger
	loop *worker.Loop

	mu      sync.Mutex // guards watched
	watched map[inet.Family]bool

	// The loop owns the fields below. The first check opens both connections.
	rules *nft.Conn
	flows *conntrack.Conn
	// handled maps each client in the set to the expiry of the element that was handled. If a
	// client is added again, its element has a later expiry.
	handled map[conntrack.Tuple]time.Time
	failed  bool
}

func newRestarts(log *slog.Logger) *restarts {
	r := &restarts{log: log, watched: map[inet.Family]bool{}, handled: map[conntrack.Tuple]time.Time{}}
	r.loop = worker.New(r.check)
	return r
}

func (r *restarts) watch(of inet.Family, dead bool) {
	r.mu.Lock()
	was := r.watched[of]
	r.watched[of] = dead
	r.mu.Unlock()
	if dead && !was {
		r.loop.Look()
	}
}

func (r *restarts) close() {
	r.loop.Close()
	if r.rules != nil {
		_ = r.rules.Close() // the connection was only used to read
	}
	if r.flows != nil {
		_ = r.flows.Close() // an error of Close is harmless
	}
}

// check forgets the flows of clients that were added since the last check, and returns the time of
// the next check.
func (r *restarts) check(context.Context) (next time.Time) {
	some := false
	var failed error
	for _, of := range inet.Families() {
		r.mu.Lock()
		dead := r.watched[of]
		r.mu.Unlock()
		if dead {
			some, failed = true, errors.Join(failed, r.forget(of))
		}
	}
	if failed != nil && !r.failed {
		r.log.Warn("clients that reuse a port of a connection to a dead endpoint might not reach another endpoint", "err", failed)
	}
	if r.failed = failed != nil; !some {
		return time.Time{}
	}
	return time.Now().Add(restartPause)
}

func (r *restarts) forget(of inet.Family) (err error) {
	if r.rules == nil {
		if r.rules, err = nft.Open(); err != nil {
			return err
		}
	}
	if r.flows == nil {
		if r.flows, err = conntrack.Open(); err != nil {
			return err
		}
	}
	l := newLayout(of)
	noted, err := r.rules.Elements(l.table, l.restarts.Name)
	if err != nil {
		return err
	}
	now := time.Now()
	var flows []conntrack.Flow
	for _, e := range noted {
		client, vip, ok := endsOf(e.Key, of)
		end := now.Add(e.Expires)
		t := conntrack.Tuple{Src: client, Dst: vip}
		if !ok || end.Sub(r.handled[t]) < restartPause {
			continue
		}
		r.handled[t] = end
		for _, p := range []balancer.Protocol{balancer.TCP, balancer.SCTP} { // the flow has one of these protocols
			flows = append(flows, conntrack.Flow{Proto: p, Orig: t})
		}
	}
	for t, end := range r.handled {
		if end.Before(now) {
			delete(r.handled, t)
		}
	}
	return r.flows.Forget(flows)
}
