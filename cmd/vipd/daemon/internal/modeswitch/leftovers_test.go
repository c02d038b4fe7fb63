package modeswitch

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
	"vipd/test/fake"
)

// refusing is a dataplane and its host. Its method Apply fails until works is true.
type refusing struct {
	fake.NoHost
	works atomic.Bool
}

func (*refusing) Capabilities() balancer.Capabilities        { return balancer.Capabilities{} }
func (*refusing) Digest(*balancer.Frontend) dataplane.Digest { return 1 }
func (*refusing) Intact(context.Context) (string, error)     { return "", nil }
func (*refusing) Traits() dataplane.Traits                   { return dataplane.Traits{} }
func (*refusing) Counters() []dataplane.FrontendCount        { return nil }
func (*refusing) Close(context.Context, bool) error          { return nil }

func (*refusing) Observe(context.Context) (dataplane.Observation, error) {
	return dataplane.Observation{}, nil
}

func (r *refusing) Apply(context.Context, []dataplane.Change) error {
	if r.works.Load() {
		return nil
	}
	return errors.New("the kernel refuses")
}

// remains is the kernel state that another mode left behind. Only the last of several attempts
// removes it.
type remains struct {
	attempts int
	looks    int
	blind    int // the number of initial checks that fail
}

func (r *remains) cleanup(_ context.Context, _ config.Config, dry bool) ([]string, error) {
	if dry {
		if r.looks++; r.looks <= r.blind {
			return nil, errors.New("the tables are held by others")
		}
		if r.attempts == 0 {
			return nil, nil
		}
		return []string{"delete rules"}, nil
	}
	if r.attempts--; r.attempts > 0 {
		return nil, errors.New("the tables are held by others")
	}
	return []string{"delete rules"}, nil
}

// TestLeftoversGoOnceTheModeServes starts a mode while the kernel still holds another mode's state.
// This state must stay until the mode in use serves. Then it must be removed, regardless of the
// number of attempts.
func TestLeftoversGoOnceTheModeServes(t *testing.T) {
	for name, others := range map[string]*remains{
		"at once":                  {attempts: 1},
		"after failures":           {attempts: 9},
		"after looks that failed":  {attempts: 3, blind: 4},
		"nothing, once it is seen": {blind: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { leftoversGo(t, others) })
		})
	}
}

func leftoversGo(t *testing.T, others *remains) {
	serving := &refusing{}
	log := slog.New(slog.DiscardHandler)
	mode := modes.Mode{Name: "here", Cleanup: func(context.Context, config.Config, bool) ([]string, error) {
		t.Error("Cleanup calls for the mode in use = at least 1, want 0")
		return nil, nil
	}}
	engine := dataplane.NewEngine(dataplane.Options{Dataplane: serving, Host: serving, Log: log})
	c := New(Options{
		Choice: Choice{Modes: []modes.Mode{mode, {Name: "other", Cleanup: others.cleanup}}, Log: log}, Engine: engine, Counters: &traffic.Counters{},
	}, &Chosen{Mode: mode, Dataplane: serving})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- engine.Run(ctx) }()
	gone := make(chan error, 1)
	go func() { gone <- c.RemoveLeftovers(ctx) }()

	key := balancer.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Proto: balancer.TCP}
	engine.Set(balancer.Desired{Frontends: snap.Map[balancer.Key, *balancer.Frontend]{}.Set(key, &balancer.Frontend{Key: key})})
	time.Sleep(time.Hour) // virtual time
	synctest.Wait()
	if s := engine.Status(); !s.Tried || s.Ready || others.looks > 0 {
		t.Errorf("tried = %t, ready = %t, probes = %d; want a failed attempt, and no probe of rules that may still serve", s.Tried, s.Ready, others.looks)
	}
	serving.works.Store(true)
	time.Sleep(2 * time.Hour)
	synctest.Wait()
	if others.attempts > 0 {
		t.Errorf("attempts still needed = %d, want 0", others.attempts)
	}
	looks := others.looks
	others.attempts = 3 // a mode that is retired later can't remove everything
	c.left.Send()
	time.Sleep(2 * time.Hour)
	synctest.Wait()
	if others.attempts > 0 || others.looks != looks+3 {
		t.Errorf("later: attempts still needed = %d after %d probes, want 0 after 3", others.attempts, others.looks-looks)
	}
	cancel()
	if err := <-gone; err != nil {
		t.Error(err)
	}
	<-ended
}

// TestLeftoversEndWithTheDaemon stops the daemon while another mode's state remains in the kernel.
// There must be no more attempts to remove it.
func TestLeftoversEndWithTheDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, serving := slog.New(slog.DiscardHandler), &refusing{}
		engine := dataplane.NewEngine(dataplane.Options{Dataplane: serving, Host: serving, Log: log})
		others := &remains{attempts: 1 << 30}
		c := New(Options{
			Choice: Choice{Modes: []modes.Mode{{Name: "other", Cleanup: others.cleanup}}, Log: log}, Engine: engine, Counters: &traffic.Counters{},
		}, &Chosen{Mode: modes.Mode{Name: "here"}, Dataplane: serving})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- engine.Run(ctx) }()
		engine.Set(balancer.Desired{})
		go func() { ended <- c.RemoveLeftovers(ctx) }()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if others.looks < 200 || others.looks > 300 {
			t.Errorf("attempts in a day = %d, want one every five minutes", others.looks)
		}
		cancel()
		for range cap(ended) {
			<-ended
		}
	})
}
