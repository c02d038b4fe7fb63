package chooser

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
	"vipd/cmd/internal/journal"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
)

// retirement is a mode that was left, while it drains.
type retirement struct {
	modes.Mode
	needs dataplane.Needs
	cut   context.CancelFunc
	// yielded is closed when the mode has let go of what the next dataplane of its kind needs, if it goes on in this
	// process, and done when it has ended.
	yielded, done chan struct{}
	// resumed: the mode is to serve again, so that what it still has in the kernel stays, for the next dataplane of its
	// kind to take over.
	resumed atomic.Bool
	drains  bool // its connections have a time to end
	kept    bool // what it had in the kernel stayed; known once it is done
}

// retire closes a mode that traffic has moved away from. Its connections may go on for as long as a drain takes.
func (c *Chooser) retire(old *Chosen) {
	ctx, cut := context.WithTimeout(context.Background(), c.DrainTime())
	traits := old.Dataplane.Traits()
	r := &retirement{Mode: old.Mode, needs: traits.Needs, drains: traits.Drains, cut: cut, yielded: make(chan struct{}), done: make(chan struct{})}
	c.retiring = append(slices.DeleteFunc(c.retiring, (*retirement).isDone), r)
	began := time.Now()
	go func() { // endRetiring and close wait for it
		defer cut()
		failed := old.Dataplane.Yield(ctx)
		close(r.yielded)
		r.kept = r.resumed.Load()
		failed = errors.Join(failed, old.Dataplane.Close(ctx, r.kept))
		c.o.Tally.End(old.Dataplane)
		if failed != nil {
			c.o.Log.Error("closing the mode that was left; what is left of it is removed later", "dataplane", old.Name, "err", failed)
		}
		c.o.Journal.Record(journal.Event{
			Kind: journal.Mode, Text: fmt.Sprintf("%s mode, which served before, has ended", old.Name), Was: "draining", Lasted: time.Since(began),
		})
		close(r.done)
		select {
		case c.ended <- struct{}{}:
		default:
		}
		if failed != nil { // nothing is looked for while it retires
			c.leave()
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

// Connections lists those of the mode in use, and of modes that were left and drain. Where connections end in this process,
// a kernel mode that has come after sees them too, on their way here: each is listed as who serves it does.
func (c *Chooser) Connections(ctx context.Context) (all []dataplane.Connection, err error) {
	type end struct {
		frontend balancer.Key
		client   netip.AddrPort
	}
	seen := map[end]bool{}
	serving := c.Serving()
	draining := slices.DeleteFunc(c.o.Tally.Dataplanes(), func(dp dataplane.Dataplane) bool { return dp == serving.Dataplane })
	for _, dp := range append(draining, serving.Dataplane) {
		list, failed := dp.Connections(ctx)
		if failed != nil && dp != serving.Dataplane {
			continue // it has just ended
		}
		err = failed
		for _, n := range list {
			if at := (end{n.Frontend, n.Client}); !seen[at] {
				seen[at] = true
				all = append(all, n)
			}
		}
	}
	return all, err
}

// DrainTime is how long connections may take to end when what serves them goes as a whole.
func (c *Chooser) DrainTime() time.Duration {
	limit := time.Second
	want, _ := c.o.Engine.Wanted()
	for key, f := range want.Frontends.All() {
		if key.Proto != balancer.UDP { // its flows have no end to wait for
			limit = max(limit, f.DrainTimeout)
		}
	}
	return limit
}

// isRetiring reports whether a mode of that name drains.
func (c *Chooser) isRetiring(name config.ModeName) bool {
	return slices.ContainsFunc(c.retiring, func(r *retirement) bool { return r.Name == name && !r.isDone() })
}

// endRetiring ends the drain of a kernel mode that is to be tried again: two of its kind would be in each other's way. One
// that has no drain ends by itself, with all that it has counted. Where connections end in this process, another of the
// kind does not disturb them, but needs the same ports.
func (c *Chooser) endRetiring(name config.ModeName) {
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

// forsake has removed what is left of modes that were to serve again and do not.
func (c *Chooser) forsake() {
	for name := range c.resumed {
		if name != c.Serving().Name {
			c.leave()
		}
	}
	clear(c.resumed)
}

// leave has whatever other modes have left looked for, and removed.
func (c *Chooser) leave() {
	select {
	case c.left <- struct{}{}:
	default:
	}
}
