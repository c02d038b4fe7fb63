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

// taker is a subject with figures of its own.
type taker interface {
	subject
	// take measures once, in the unit of what is measured.
	take(ctx context.Context, what measure) (float64, error)
}

var _ taker = (*own)(nil)

// clocked sums up how long a dataplane's Observe and Apply take.
type clocked struct {
	dataplane.Dataplane
	took time.Duration
}

// Unwrap returns the dataplane that is measured.
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

// never is a time between looks that has none come.
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

// look is what the engine does each second when there is nothing to do.
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

// restart is the end of one process of the daemon, which leaves all in place, and the beginning of the next, up to
// before it looks at what is there.
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

// adopt lets a process that has just started find what it wants in place.
func (o *own) adopt(ctx context.Context) (time.Duration, error) {
	o.run()
	began := time.Now()
	o.engine.Set(o.compiled)
	return o.wait(ctx, began)
}

// adoptingMessages counts the messages to IPVS by which a process that adopts changes something.
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

// ending is how long messages are counted after a change: those that end the drain of what has no connections come then.
const ending = 3 * time.Second

// uncounted is the number of a change that is none of those whose time is taken.
const uncounted = 20

// endpointMessages counts the messages to IPVS that change something for one endpoint that is replaced by another. Those that
// only read are not counted: the engine may look at the tables meanwhile, when the kernel tells of a change on the host.
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
	time.Sleep(ending) // what more comes is counted
	all, changing, err := m.count()
	if err == nil && changing == 0 {
		err = fmt.Errorf("none of %d messages to IPVS changes anything", all)
	}
	return float64(changing), err
}
