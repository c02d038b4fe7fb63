package daemon

import (
	"context"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
)

// retirement is a mode that was left, while it drains.
type retirement struct {
	cut  context.CancelFunc
	done chan struct{}
}

// retire closes a mode that traffic has moved away from. Its connections may go on for as long as a drain takes.
func (c *chooser) retire(old *chosen) {
	ctx, cut := context.WithTimeout(context.Background(), c.drainTime())
	r := &retirement{cut: cut, done: make(chan struct{})}
	c.retiring[old.Name] = r
	go func() { // endRetiring and close wait for it
		defer close(r.done)
		defer cut()
		if err := old.dataplane.Close(ctx, false); err != nil {
			c.Log.Error("closing the mode that was left; vipctl cleanup removes what there is of it while vipd is stopped", "dataplane", old.Name, "err", err)
		}
		c.tally.end(old.dataplane)
		c.Log.Info("nothing is left of the mode that served before", "dataplane", old.Name)
	}()
}

// drainTime is how long connections may take to end when what serves them goes as a whole.
func (d *Daemon) drainTime() time.Duration {
	limit := time.Second
	want, _ := d.engine.Wanted()
	for key, f := range want.Frontends.All() {
		if key.Proto != balancer.UDP { // its flows have no end to wait for
			limit = max(limit, f.DrainTimeout)
		}
	}
	return limit
}

// endRetiring ends the drain of a mode that is to be tried again: two of one kind would be in each other's way.
func (c *chooser) endRetiring(name config.ModeName) {
	if r := c.retiring[name]; r != nil {
		r.cut()
		<-r.done
		delete(c.retiring, name)
	}
}
