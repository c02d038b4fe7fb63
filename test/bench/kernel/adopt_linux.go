package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"vipd/dataplane"
)

// taker is a subject with its own figures.
type taker interface {
	subject
	// take measures once, in the unit of the measure.
	take(ctx context.Context, what measure) (float64, error)
}

var _ taker = (*own)(nil)

// clocked sums the durations of a dataplane's Observe and Apply.
type clocked struct {
	dataplane.Dataplane
	took time.Duration
}

// Unwrap returns the measured dataplane.
func (c *clocked) Unwrap() dataplane.Dataplane { return c.Dataplane }

// Observe implements dataplane.Dataplane.
func (c *clocked) Observe(ctx context.Context) (dataplane.Observation, error) {
	defer c.since(time.Now())
	return c.Dataplane.Observe(ctx)
}

// Apply implements dataplane.Dataplane.
func (c *clocked) Apply(ctx context.Context, batch []dataplane.Change) error {
	defer c.since(time.Now())
	return c.Dataplane.Apply(ctx, batch)
}

func (c *clocked) since(began time.Time) { c.took += time.Since(began) }

// never is an interval that is longer than the benchmark.
const never = 24 * time.Hour

// take implements taker for ipvs mode.
func (o *own) take(ctx context.Context, what measure) (float64, error) {
	switch what {
	case saving:
		began := time.Now()
		if err := exec.CommandContext(ctx, "ipvsadm", "-Sn").Run(); err != nil {
			return 0, fmt.Errorf("running ipvsadm -Sn: %w", err)
		}
		return milliseconds(time.Since(began)), nil
	case adopting, adoptingAll:
		if err := o.restart(0); err != nil {
			return 0, err
		}
		whole, err := o.adopt(ctx)
		if what == adopting {
			return milliseconds(o.dataplane.took), err
		}
		return milliseconds(whole), err
	case adoptingMessages:
		return o.adoptingMessages(ctx)
	case endpointMessages:
		return o.endpointMessages(ctx)
	case looking:
		return o.look(ctx)
	}
	return 0, fmt.Errorf("%s has no %s", o.spec.Layout, what)
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// look runs the engine's check of each second.
func (o *own) look(ctx context.Context) (float64, error) {
	o.stop()
	began := time.Now()
	reason, err := o.dataplane.Intact(ctx)
	if err == nil && reason == "" {
		reason, err = o.host.Intact(ctx)
	}
	took := time.Since(began)
	if reason != "" {
		err = fmt.Errorf("something is missing: %s", reason)
	}
	return milliseconds(took), err
}

// restart ends a process of the daemon, which leaves everything in place, and starts the next, up
// to its first check of the kernel.
func (o *own) restart(probe time.Duration) error {
	o.stop()
	err := o.dataplane.Close(context.Background(), true)
	if c, ok := o.host.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		return fmt.Errorf("ending the first process: %w", err)
	}
	return o.start(probe)
}

// adopt measures how a process that has just started finds its desired state in place.
func (o *own) adopt(ctx context.Context) (time.Duration, error) {
	o.run()
	began := time.Now()
	o.engine.Set(o.compiled)
	return o.wait(ctx, began)
}

// adoptingMessages counts the messages to IPVS by which an adopting process changes something.
func (o *own) adoptingMessages(ctx context.Context) (float64, error) {
	if err := o.restart(never); err != nil {
		return 0, err
	}
	m, err := watchIPVS()
	if err != nil {
		return 0, err
	}
	defer m.close()
	if _, err := o.adopt(ctx); err != nil {
		return 0, err
	}
	all, changing, err := m.count()
	if err == nil && all == 0 {
		err = errors.New("no message to IPVS was seen, though it was read")
	}
	return float64(changing), err
}

// ending is the time for which messages are counted after a change, because drains without
// connections end in that time.
const ending = 3 * time.Second

// uncounted is the number of a change that is not timed.
const uncounted = 20

// endpointMessages counts the messages to IPVS that change something when one endpoint replaces
// another. It ignores messages that only read, because the engine may check the tables at the same
// time.
func (o *own) endpointMessages(ctx context.Context) (float64, error) {
	if err := o.restart(never); err != nil {
		return 0, err
	}
	if _, err := o.adopt(ctx); err != nil {
		return 0, err
	}
	m, err := watchIPVS()
	if err != nil {
		return 0, err
	}
	defer m.close()
	if _, err := o.change(ctx, endpointChanged, uncounted); err != nil {
		return 0, err
	}
	time.Sleep(ending) // later messages also count
	all, changing, err := m.count()
	if err == nil && changing == 0 {
		err = fmt.Errorf("none of %d messages to IPVS changes anything", all)
	}
	return float64(changing), err
}
