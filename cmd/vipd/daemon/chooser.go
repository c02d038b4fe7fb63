package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/journal"
	"vipd/cmd/vipd/daemon/internal/tally"
	"vipd/dataplane/host"
)

// chooser owns which mode serves. It chooses again at every reload, and when mode or strict_mode has changed, and
// switches while traffic goes on:
//
//	trial of the next mode -> the engine carries everything out in both -> the one before is closed, and drains
//
// A next mode that can't carry anything out is left again. What a mode that is left still serves goes on for as long as
// drains may take.
type chooser struct {
	*Daemon
	serving atomic.Pointer[chosen]
	ask     chan chan struct{} // a request to choose again, closed when that is done
	left    chan struct{}      // holds a token: something of a mode that does not serve may be left
	ended   chan struct{}      // holds a token: a mode that was left has ended
	tally   tally.Tally

	changing sync.Mutex // held while modes are tried, switched and cleaned up; guards the rest
	retiring []*retirement
	// tuned is what the host was last told of the modes.
	tuned host.Mode
	// resumed are modes whose drains were ended because they are to serve again; what they had in the kernel is there.
	resumed map[config.ModeName]bool
	unused  []*chosen // could not be closed yet
}

func newChooser(d *Daemon, first *chosen) *chooser {
	c := &chooser{Daemon: d, ask: make(chan chan struct{}), left: make(chan struct{}, 1), ended: make(chan struct{}, 1), resumed: map[config.ModeName]bool{}, tuned: first.Host()}
	c.serving.Store(first)
	c.tally.Begin(first.dataplane, false)
	return c
}

// countPause is the time between two looks at what the dataplanes have counted, whoever else looks. What is gone is
// forgotten when somebody looks: without scrapes and questions, it would pile up as endpoints come and go.
const countPause = 10 * time.Minute

// run chooses again whenever that is asked for, until ctx ends.
func (c *chooser) run(ctx context.Context) error {
	count := time.NewTicker(countPause)
	defer count.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.model.modeChanged:
			c.again(ctx)
		case done := <-c.ask:
			c.again(ctx)
			close(done)
		case <-count.C:
			c.tally.Counts()
		case <-c.ended:
			c.changing.Lock()
			c.tune()
			c.changing.Unlock()
		}
	}
}

// reload chooses again, and returns when that is done.
func (c *chooser) reload(ctx context.Context) {
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

// again chooses, and switches if another mode than the one in use is to serve.
func (c *chooser) again(ctx context.Context) {
	c.changing.Lock()
	defer c.changing.Unlock()
	defer c.tune()
	defer c.forsake()
	use, conf := c.serving.Load(), c.model.configured()
	unfit := map[config.ModeName]error{}
	for {
		next, err := choice{all: c.Modes, config: conf, log: c.Log, journal: c.journal, use: use, unfit: unfit, before: c.endRetiring}.make(ctx)
		switch {
		case ctx.Err() != nil && next != nil && next.dataplane != use.dataplane:
			c.unused = append(c.unused, next)
			return
		case ctx.Err() != nil:
			return
		case err != nil: // strict_mode ends the start, but not what serves
			c.journal.Record(journal.Event{
				Kind: journal.Mode, Level: slog.LevelError, Text: fmt.Sprintf("%s mode stays, as the wanted one is not usable here", use.Name), Cause: err.Error(),
			})
			c.serving.Store(&chosen{Mode: use.Mode, dataplane: use.dataplane, fallback: true, reason: err.Error()})
			return
		case next.dataplane == use.dataplane:
			c.serving.Store(next)
			return
		}
		if err = c.move(ctx, use, next); err == nil || ctx.Err() != nil {
			return
		}
		unfit[next.Name] = err
	}
}

// moveTime bounds how long the next mode may take to carry out what is wanted, before it is left again. A first load of
// ten thousands of services takes some seconds.
const moveTime = 2 * time.Minute

// failLooks is for how many seconds nothing at all may work in the next mode before it is left again.
const failLooks = 10

// move has the next mode take over. The error says why the one in use still serves.
func (c *chooser) move(ctx context.Context, use, next *chosen) error {
	c.Log.Debug("switching the mode", "from", use.Name, "to", next.Name, "why", next.reason)
	started := time.Now()
	c.tell(use.Host().And(next.Host())) // both serve for a while
	c.passive.Listen(next.dataplane)
	moved := c.model.adopt(next.dataplane)
	if err := c.await(ctx, moved); err != nil {
		c.back(ctx, use, next, err)
		return err
	}
	c.tally.Begin(next.dataplane, c.resumed[next.Name])
	c.serving.Store(next)
	c.retire(use)
	c.journal.Record(journal.Event{
		Kind: journal.Mode, Text: fmt.Sprintf("%s mode serves now, in place of %s", next.Name, use.Name), Cause: next.reason, Took: time.Since(started),
	})
	return nil
}

// tune tells the host what the mode in use needs of it, and what those need whose connections the kernel still forwards.
func (c *chooser) tune() {
	mode := c.serving.Load().Host()
	for _, r := range c.retiring {
		if r.Forwards && !r.isDone() {
			mode = mode.And(r.Host())
		}
	}
	if mode != c.tuned {
		c.tell(mode)
		c.model.kick()
	}
}

func (c *chooser) tell(mode host.Mode) {
	c.tuned = mode
	c.host.SetMode(mode)
}

// await waits until traffic has moved; the error says why it has not.
func (c *chooser) await(ctx context.Context, moved <-chan struct{}) error {
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
			return fmt.Errorf("it has not carried everything out within %v", moveTime)
		case <-look.C:
			s := c.engine.Status()
			if failing++; !s.Moving || s.LastError == "" {
				failing = 0
			}
			if failing == failLooks {
				return errors.New(s.LastError)
			}
		}
	}
}

// back leaves a mode to which traffic could not move.
func (c *chooser) back(ctx context.Context, use, next *chosen, why error) {
	if ctx.Err() == nil {
		c.journal.Record(journal.Event{
			Kind: journal.Mode, Level: slog.LevelError, Text: fmt.Sprintf("%s mode can't carry out what is wanted, and is left again", next.Name),
			Cause: why.Error(),
		})
		if c.await(ctx, c.model.adopt(use.dataplane)) == nil {
			c.drop(next)
			return
		}
	}
	c.unused = append(c.unused, next) // the engine may be at work in it
}

// drop closes the dataplane of a mode that is not to serve after all.
func (c *chooser) drop(next *chosen) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	if err := next.dataplane.Close(ctx, false); err != nil {
		c.Log.Error("closing a mode that does not serve; what is left of it is removed later", "dataplane", next.Name, "err", err)
		c.leave()
	}
}

// close closes all dataplanes but the one in use. It is called when the engine has ended.
func (c *chooser) close() {
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
