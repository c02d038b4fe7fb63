package fleetchecks

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/events"
)

// gate is a log that blocks until its channel is closed.
type gate chan struct{}

func (g gate) Write(line []byte) (int, error) {
	<-g
	return len(line), nil
}

// TestCloggedLogOfAChecker blocks a host's log. The host must still vote, and receive the other
// hosts' votes.
func TestCloggedLogOfAChecker(t *testing.T) {
	w := newWorld(t, 6, quick())
	w.join("host1")
	log := make(gate)
	ctx, end := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	w.join("host2", func(h *simulated, o *Options) {
		h.events = events.New(events.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
		o.Record = h.events.Record
		writing.Go(func() { h.events.Run(ctx) })
	})
	defer writing.Wait()
	defer end()
	defer close(log)
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	w.turn(true, w.targets...)
	w.waitUntilStable(w.hosts, balancer.HealthDown)
	w.turn(false, w.targets...)
	w.waitUntilStable(w.hosts, balancer.HealthUp)
}
