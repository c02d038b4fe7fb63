package modeswitch

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
)

// TestCountsAreReadByNobody runs a Switch while nothing requests counts. The dataplane's counters
// must still be read at intervals, because each reading lets the dataplane forget removed
// endpoints. The counters must not be read before the first apply.
func TestCountsAreReadByNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := &asked{}
		engine := dataplane.NewEngine(dataplane.Options{Dataplane: asked, Host: asked, Log: slog.New(slog.DiscardHandler), ProbeInterval: time.Hour})
		c := New(Options{Choice: Choice{Configuration: &liveconfig.Config{}}, Counters: &traffic.Counters{}, Engine: engine}, &Chosen{Dataplane: asked})
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = engine.Run(ctx) })
		running.Go(func() { _ = c.Run(ctx) })
		time.Sleep(time.Hour)
		if asked.times > 0 {
			t.Error("readings before the first change = 1 or more, want 0")
		}
		asked.works.Store(true)
		engine.Set(balancer.Desired{})
		time.Sleep(24 * time.Hour)
		end()
		running.Wait()
		if asked.times < 100 || asked.times > 500 {
			t.Errorf("readings in a day = %d, want 100 to 500", asked.times)
		}
	})
}

// asked is a dataplane that counts how often its counters are read.
type asked struct {
	refusing
	times int
}

func (a *asked) Counters() []dataplane.FrontendCount {
	a.times++
	return nil
}
