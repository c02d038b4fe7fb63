package modeswitch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"vipd/cmd/vipd/daemon/internal/counters"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/dataplane"
)

// TestCountsAreReadByNobody: where nobody asks for counts, the dataplane is asked now and then, so that it forgets what is
// gone.
func TestCountsAreReadByNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := &asked{}
		c := New(Options{Choice: Choice{Configuration: &liveconfig.Config{}}, Counters: &counters.Process{}}, &Chosen{Dataplane: asked})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = c.Run(ctx) }()
		time.Sleep(24 * time.Hour)
		end()
		<-ended
		if asked.times < 100 || asked.times > 500 {
			t.Errorf("it was asked %d times in a day", asked.times)
		}
	})
}

// asked is a dataplane that notes how often it was asked for its counts.
type asked struct {
	refusing
	times int
}

func (a *asked) Counters() []dataplane.FrontendCount {
	a.times++
	return nil
}
