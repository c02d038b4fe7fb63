package modeswitch

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
)

// leaving is a dataplane that takes as long as it may to yield, and records how long its drain may
// then last.
type leaving struct {
	refusing
	yielded time.Duration
	drains  chan time.Duration
}

func (l *leaving) Yield(ctx context.Context) error {
	began := time.Now()
	<-ctx.Done()
	l.yielded = time.Since(began)
	return nil
}

func (l *leaving) Close(ctx context.Context, _ bool) error {
	until, _ := ctx.Deadline()
	l.drains <- time.Until(until)
	return nil
}

// TestDrainsBeginAfterYielding retires a dataplane that takes as long as it may to yield.
// Connections that arrive during this time must have the full drain time.
func TestDrainsBeginAfterYielding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const drain = time.Minute
		old := &leaving{drains: make(chan time.Duration)}
		engine := dataplane.NewEngine(dataplane.Options{Dataplane: old, Host: old, Log: slog.New(slog.DiscardHandler)})
		key := balancer.Key{Port: 80, Proto: balancer.TCP}
		engine.Set(balancer.Desired{Frontends: snap.Map[balancer.Key, *balancer.Frontend]{}.Set(key, &balancer.Frontend{Key: key, Policy: balancer.Policy{DrainTimeout: drain}})})
		use := &Chosen{Dataplane: old, left: make(chan struct{}), ended: make(chan struct{})}
		o := Options{Choice: Choice{Events: events.New(events.Options{})}, Engine: engine, Counters: &traffic.Counters{}}
		New(o, use).retire(use)
		if got := <-old.drains; old.yielded != drain || got != drain {
			t.Errorf("yielding took %s, draining took %s, want %s for each", old.yielded, got, drain)
		}
		<-use.ended
	})
}
