package modeswitch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
)

// retirement is a mode that no longer serves and is draining.
type retirement struct {
	modes.Mode
	needs dataplane.Needs
	cut   context.CancelFunc
	// yielded is closed when the mode has released everything that the next dataplane of its kind
	// needs, although it still drains. done is closed when the mode has finished draining.
	yielded, done chan struct{}
	// resumed is set if the mode must serve again. Its kernel state is then kept for the next
	// dataplane of its kind.
	resumed atomic.Bool
	drains  bool // set if its connections may finish
	kept    bool // set if its kernel state was kept; valid after done is closed
}

// retire closes a mode after traffic has moved to another mode. Its connections may continue for
// the duration of a drain.
func (c *Switch) retire(old *Chosen) {
	close(old.left)
	ctx, cut := context.WithCancel(context.Background())
	traits := old.Dataplane.Traits()
	traits.Needs.Resets = false // its rules are removed, so there are no new translations
	r := &retirement{Mode: old.Mode, needs: traits.Needs, drains: traits.Drains, cut: cut, yielded: make(chan struct{}), done: make(chan struct{})}
	c.retiring = append(slices.DeleteFunc(c.retiring, (*retirement).isDone), r)
	began := time.Now()
	go func() { // endRetiring and close wait for this goroutine
		defer cut()
		yielding, end := context.WithTimeout(ctx, c.DrainTime())
		var failed error
		if d, yields := dataplane.As[dataplane.Yields](old.Dataplane); yields {
			failed = d.Yield(yielding)
		}
		end()
		close(r.yielded)
		r.kept = r.resumed.Load()
		closing, end := context.WithTimeout(ctx, c.DrainTime()) // the wait for yielding does not count
		failed = errors.Join(failed, old.Dataplane.Close(closing, r.kept))
		end()
		c.o.Counters.End(old.Dataplane, r.kept)
		if failed != nil {
			c.o.Log.Error("closing the previous mode; its leftovers are removed later", "dataplane", old.Name, "err", failed)
		}
		c.o.Events.Record(events.Event{
			Kind: events.Mode, Text: fmt.Sprintf("the previous mode, %s, is closed", old.Name), Was: "draining", Lasted: time.Since(began),
		})
		close(r.done)
		close(old.ended)
		c.ended.Send()
		c.o.Engine.Resync() // the mode in use examines the connections from this mode that conntrack keeps
		if failed != nil {  // RemoveLeftovers skipped this mode while it was retiring
			c.left.Send()
		}
	}()
}

func (r *retirement) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Connections calls visit for each connection that q selects, in the mode in use and in modes that
// drain. A kernel mode may also list connections that another mode terminates in this process. Each
// connection is visited only once, with the values from the mode that serves it.
func (c *Switch) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	serving := c.Serving().Dataplane
	draining := slices.DeleteFunc(c.o.Counters.Dataplanes(), func(dp dataplane.Dataplane) bool { return dp == serving })
	if len(draining) == 0 {
		return list(ctx, serving, q, visit)
	}
	type end struct {
		frontend balancer.Key
		client   netip.AddrPort
	}
	seen := map[end]bool{}
	once := func(n *dataplane.Connection) error {
		if at := (end{n.Frontend, n.Client}); !seen[at] {
			seen[at] = true
			return visit(n)
		}
		return nil
	}
	for _, dp := range draining {
		_ = list(ctx, dp, q, once) // a mode whose list fails has just closed
	}
	return list(ctx, serving, q, once)
}

// list calls visit for the connections of dp that q selects, if dp can list connections.
func list(ctx context.Context, dp dataplane.Dataplane, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	if d, lists := dataplane.As[dataplane.ListsConnections](dp); lists {
		return d.Connections(ctx, q, visit)
	}
	return nil
}

// Kill ends the connections that q selects, in the mode in use and in modes that drain. It returns
// their number.
func (c *Switch) Kill(ctx context.Context, q dataplane.ConnectionQuery) (n int, err error) {
	for _, dp := range c.o.Counters.Dataplanes() {
		d, ends := dataplane.As[dataplane.EndsConnections](dp)
		if !ends {
			continue
		}
		killed, failed := d.Kill(ctx, q)
		n += killed
		if dp == c.Serving().Dataplane {
			err = failed // a draining mode may have just ended
		}
	}
	return n, err
}

// DrainTime returns the maximum time that connections get to finish when their mode ends.
func (c *Switch) DrainTime() time.Duration {
	limit := time.Second
	want, _ := c.o.Engine.Wanted()
	for key, f := range want.Frontends.All() {
		if key.Proto != balancer.UDP { // UDP flows have no end to wait for
			limit = max(limit, f.DrainTimeout)
		}
	}
	return limit
}

// isRetiring reports whether a mode with this name is draining.
func (c *Switch) isRetiring(name config.ModeName) bool {
	return slices.ContainsFunc(c.retiring, func(r *retirement) bool { return r.Name == name && !r.isDone() })
}

// endRetiring prepares for the trial of a mode that may still be retiring. Two dataplanes of the
// same kernel mode would conflict, so it ends the mode's drain, or waits for the end of a mode that
// does not drain. Of a mode that terminates connections in this process, it only waits for the
// release of the ports.
func (c *Switch) endRetiring(name config.ModeName) {
	for _, r := range c.retiring {
		switch {
		case r.Name != name || r.isDone():
		case r.Keeps && r.drains:
			r.resumed.Store(true)
			r.cut()
			<-r.done
			if r.kept {
				c.resumed[name] = true
			}
		case r.Keeps:
			<-r.done
		default:
			<-r.yielded
		}
	}
}

// dropResumed requests the removal of the remains of modes that were resumed but do not serve.
func (c *Switch) dropResumed() {
	for name := range c.resumed {
		if name != c.Serving().Name {
			c.left.Send()
		}
	}
	clear(c.resumed)
}
