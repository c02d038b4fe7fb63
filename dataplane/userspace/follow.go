package userspace

import (
	"context"
	"sync"
	"sync/atomic"

	"vipd/dataplane"
)

// followers holds the active calls of Follow. If there are none, a connection only reads count.
type followers struct {
	count atomic.Int32
	mu    sync.Mutex // guards all
	all   map[*follower]bool
}

// follower is an active call of Follow.
type follower struct {
	news chan connEvent
	// missed reports whether the channel overflowed since the last report. ends counts the end
	// events that were lost.
	missed atomic.Bool
	ends   atomic.Uint64
}

// connEvent is the start or the end of a connection.
type connEvent struct {
	began bool
	conn  dataplane.Connection
}

// followerBuffer is the number of events that a slow follower may lag behind.
const followerBuffer = 4096

func (s *followers) some() bool { return s.count.Load() > 0 }

// publish sends an event to all followers. It never blocks, so a follower whose channel is full
// misses the event.
func (s *followers) publish(n connEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.all {
		select {
		case f.news <- n:
		default:
			if !n.began {
				f.ends.Add(1)
			}
			f.missed.Store(true)
		}
	}
}

func (s *followers) add(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*follower]bool{}
	}
	s.all[f] = true
	s.count.Add(1)
}

func (s *followers) remove(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, f)
	s.count.Add(-1)
}

// Follow implements [dataplane.FollowsConnections]. A connection starts when an endpoint accepts
// it.
func (d *Dataplane) Follow(ctx context.Context, tell func(began bool, c *dataplane.Connection), lost func(ends uint64)) error {
	f := &follower{news: make(chan connEvent, followerBuffer)}
	d.followers.add(f)
	defer d.followers.remove(f)
	for {
		select {
		case <-ctx.Done():
			for len(f.news) > 0 {
				n := <-f.news
				tell(n.began, &n.conn)
			}
			f.report(lost)
			return nil
		case n := <-f.news:
			tell(n.began, &n.conn)
			f.report(lost)
		}
	}
}

// report calls lost if events were lost since the previous report.
func (f *follower) report(lost func(ends uint64)) {
	if f.missed.Swap(false) {
		lost(f.ends.Swap(0))
	}
}

// Kill implements [dataplane.EndsConnections]. It resets both sides of a TCP connection, and ends
// UDP flows.
func (d *Dataplane) Kill(ctx context.Context, q dataplane.ConnectionQuery) (n int, err error) {
	n, err = d.carried.Kill(ctx, q)
	for _, f := range d.list() {
		if f.concerns(&q) {
			n += f.kill(&q)
		}
	}
	return n, err
}

func (f *frontend) kill(q *dataplane.ConnectionQuery) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for x := f.conns.next; x != &f.conns; x = x.next {
		if c := x.describeLocked(); !x.cut && q.Matches(&c) {
			x.cutLocked()
			n++
		}
	}
	f.flows.each(func(x *flow) {
		if c := f.describeLocked(x); q.Matches(&c) {
			f.endFlowLocked(x)
			n++
		}
	})
	return n
}
