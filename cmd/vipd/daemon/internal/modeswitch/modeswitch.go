package modeswitch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
)

// Switch chooses the mode that serves. Serving, Connections, Reload and DrainTime are safe for
// concurrent use.
type Switch struct {
	o       Options
	serving atomic.Pointer[Chosen]
	ask     chan chan struct{} // requests to choose again; each is closed when the choice is complete
	left    wake.Signal        // sent when kernel state of an unused mode may remain
	ended   wake.Signal        // sent when a retired mode has finished draining

	changing sync.Mutex // held while modes are tried, switched and cleaned up; guards the fields below
	retiring []*retirement
	// tuned holds the combined needs that were last sent to the host.
	tuned dataplane.Needs
	// resumed holds modes whose drains were cut short because they must serve again. Their state
	// still exists in the kernel.
	resumed map[config.ModeName]bool
	unused  []*Chosen // modes that could not be closed yet
}

// Options configures a Switch.
type Options struct {
	Choice
	// Config is the initial configuration.
	Config config.Config
	// Engine applies the state in the mode that serves.
	Engine *dataplane.Engine
	// Adopt makes the model compile for a dataplane, and the engine apply to it. The returned
	// channel is closed when all traffic has moved. Kick makes the engine check the host again.
	Adopt func(dataplane.Dataplane) <-chan struct{}
	Kick  func()
	// SetNeeds sends the needs of modes to the host.
	SetNeeds func(dataplane.Needs)
	// Listen receives a dataplane before it starts.
	Listen func(dataplane.Dataplane)
	// Counters sums the counts of current and past dataplanes.
	Counters *traffic.Counters
}

// New returns a Switch that starts with the mode first.
func New(o Options, first *Chosen) *Switch {
	c := &Switch{
		o: o, ask: make(chan chan struct{}), left: wake.New(), ended: wake.New(), resumed: map[config.ModeName]bool{}, tuned: first.Dataplane.Traits().Needs,
	}
	c.serving.Store(first)
	o.Counters.Begin(first.Name, first.Dataplane, true) // a previous vipd may have left state for this mode
	return c
}

// Serving returns the mode in use.
func (c *Switch) Serving() *Chosen { return c.serving.Load() }

// countPause is the interval at which the dataplanes' counters are read. Each reading drops removed
// endpoints, which would accumulate without scrapes or requests.
const countPause = 10 * time.Minute

// Run chooses again at each request until ctx is done.
func (c *Switch) Run(ctx context.Context) error {
	count := time.NewTicker(countPause)
	defer count.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.o.Configuration.ModeChanged():
			c.again(ctx)
		case done := <-c.ask:
			c.again(ctx)
			close(done)
		case <-count.C:
			if c.o.Engine.Status().Ready { // see status.View.Counts
				c.o.Counters.Counts()
			}
		case <-c.ended:
			c.changing.Lock()
			c.tune()
			c.changing.Unlock()
		}
	}
}

// Reload chooses again, and returns when the choice has taken effect.
func (c *Switch) Reload(ctx context.Context) {
	done := make(chan struct{})
	select {
	case c.ask <- done:
		select {
		case <-done:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
}

// again chooses a mode, and switches if it differs from the mode in use.
func (c *Switch) again(ctx context.Context) {
	c.changing.Lock()
	defer c.changing.Unlock()
	defer c.tune()
	defer c.dropResumed()
	use, among := c.Serving(), c.o.Choice
	among.use = use
	among.unfit = map[config.ModeName]error{}
	among.before = c.endRetiring
	for {
		next, err := among.Make(ctx)
		switch {
		case ctx.Err() != nil && next != nil && next.Dataplane != use.Dataplane:
			c.unused = append(c.unused, next)
			return
		case ctx.Err() != nil:
			return
		case err != nil: // strict_mode prevents a start in another mode, but does not stop a mode that serves
			c.o.Events.Record(events.Event{
				Kind: events.Mode, Level: slog.LevelError, Text: fmt.Sprintf("%s mode stays in use, because the wanted mode is not usable here", use.Name), Cause: err.Error(),
			})
			stays := *use
			stays.Fallback, stays.Reason = true, err.Error()
			c.serving.Store(&stays)
			return
		case next.Dataplane == use.Dataplane:
			c.serving.Store(next)
			return
		}
		if err = c.move(ctx, use, next); err == nil || ctx.Err() != nil {
			return
		}
		among.unfit[next.Name] = err
	}
}

// moveTime is how long the next mode may take to apply everything before it is abandoned. A first
// load of tens of thousands of services takes several seconds.
const moveTime = 2 * time.Minute

// failLooks is the number of consecutive failed checks after which the next mode is abandoned.
// There is one check per second.
const failLooks = 10

// move makes the next mode take over. If it returns an error, that is the reason why the mode in
// use still serves.
func (c *Switch) move(ctx context.Context, use, next *Chosen) error {
	c.o.Log.Debug("switching the mode", "from", use.Name, "to", next.Name, "why", next.Reason)
	started := time.Now()
	c.sendNeeds(use.Dataplane.Traits().And(next.Dataplane.Traits().Needs)) // both modes serve for a while
	c.o.Listen(next.Dataplane)
	moved := c.o.Adopt(next.Dataplane)
	if err := c.await(ctx, moved); err != nil {
		c.back(ctx, use, next, err)
		return err
	}
	c.o.Counters.Begin(next.Name, next.Dataplane, c.resumed[next.Name])
	c.serving.Store(next)
	c.retire(use)
	c.o.Events.Record(events.Event{
		Kind: events.Mode, Text: fmt.Sprintf("%s mode serves now instead of %s", next.Name, use.Name), Cause: next.Reason, Took: time.Since(started),
	})
	return nil
}

// tune sends the combined needs of modes to the host: the needs of the mode in use, and of modes
// whose connections the kernel still forwards.
func (c *Switch) tune() {
	needs := c.Serving().Dataplane.Traits().Needs
	for _, r := range c.retiring {
		if r.needs.Forward && !r.isDone() {
			needs = needs.And(r.needs)
		}
	}
	if needs != c.tuned {
		c.sendNeeds(needs)
		c.o.Kick()
	}
}

func (c *Switch) sendNeeds(needs dataplane.Needs) {
	c.tuned = needs
	c.o.SetNeeds(needs)
}

// await waits until traffic has moved. If it has not moved, await returns the reason.
func (c *Switch) await(ctx context.Context, moved <-chan struct{}) error {
	limit := time.NewTimer(moveTime)
	defer limit.Stop()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for failing := 0; ; {
		select {
		case <-moved:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("it has not applied everything within %v", moveTime)
		case <-look.C:
			s := c.o.Engine.Status()
			if failing++; !s.Moving || s.LastError == "" {
				failing = 0
			}
			if failing == failLooks {
				return errors.New(s.LastError)
			}
		}
	}
}

// back keeps the mode in use, because traffic could not move to the next mode.
func (c *Switch) back(ctx context.Context, use, next *Chosen, why error) {
	if ctx.Err() == nil {
		c.o.Events.Record(events.Event{
			Kind: events.Mode, Level: slog.LevelError, Text: fmt.Sprintf("%s mode can't apply the wanted state: switching back", next.Name),
			Cause: why.Error(),
		})
		if c.await(ctx, c.o.Adopt(use.Dataplane)) == nil {
			c.drop(next)
			return
		}
	}
	c.unused = append(c.unused, next) // the engine may still use this mode
}

// closeTime limits how long closing a dataplane that does not serve may take.
const closeTime = 20 * time.Second

// drop closes the dataplane of a mode that will not serve.
func (c *Switch) drop(next *Chosen) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if err := next.Dataplane.Close(ctx, false); err != nil {
		c.o.Log.Error("closing a mode that is not in use; its leftovers are removed later", "dataplane", next.Name, "err", err)
		c.left.Send()
	}
}

// Close closes all dataplanes except the dataplane in use. It must be called after the engine has
// stopped.
func (c *Switch) Close() {
	for _, r := range c.retiring {
		r.cut()
	}
	for _, r := range c.retiring {
		<-r.done
	}
	for _, next := range c.unused {
		c.drop(next)
	}
}

// Follow calls the function tell for each connection that starts or ends in the mode that serves,
// or that ends in a retired mode. It calls the function lost if connections may have been missed,
// for example when another mode takes over. It returns nil when ctx is done.
func (c *Switch) Follow(ctx context.Context, tell func(began bool, n *dataplane.Connection), lost func(ends uint64)) error {
	var mu sync.Mutex // serializes the calls
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for first := true; ctx.Err() == nil; first = false {
		if !first {
			locked(&mu, func() { lost(1) })
		}
		serving, failed := c.Serving(), make(chan error, 1)
		part, end := context.WithCancel(ctx)
		following.Go(func() {
			defer end()
			d, follows := dataplane.As[dataplane.FollowsConnections](serving.Dataplane)
			if !follows {
				<-part.Done()
				failed <- nil
				return
			}
			failed <- d.Follow(part, func(began bool, n *dataplane.Connection) { locked(&mu, func() { tell(began, n) }) },
				func(ends uint64) { locked(&mu, func() { lost(ends) }) })
		})
		select {
		case err := <-failed:
			if err != nil {
				return err
			}
		case <-serving.left:
			if serving.Keeps && c.Serving().Keeps { // the kernel reports all connections to the next mode, so none are lost
				end()
			}
			following.Go(func() {
				defer end()
				select {
				case <-serving.ended:
				case <-part.Done():
				}
			})
		}
	}
	return nil
}

func locked(mu *sync.Mutex, do func()) {
	mu.Lock()
	defer mu.Unlock()
	do()
}
