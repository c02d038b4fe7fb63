package model_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/checks"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/names"
	"vipd/cmd/vipd/daemon/internal/outlier"
	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/dataplane/probe"
	"vipd/store"
	"vipd/store/statedir"
	"vipd/test/fake"
)

// options returns options for a model that uses a state directory but no host.
func options(t *testing.T, path string) model.Options {
	t.Helper()
	published := model.NewPublished(config.Default())
	stateDir := statedir.New(path, published.Kick)
	history := events.New(events.Options{Log: slog.New(slog.DiscardHandler)})
	found, err := checks.New(checks.Options{
		StateDir: stateDir, Events: history, Kick: published.Kick,
		OnResult: func(probe.TargetResult) {}, Observe: func(balancer.HealthType, time.Duration) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	carrier := fake.New(fake.NewKernel())
	return model.Options{
		Published: published, Configuration: liveconfig.New("", "", config.Default(), published.Kick), StateDir: stateDir,
		Events: history, Carrier: carrier, Engine: dataplane.NewEngine(dataplane.Options{Dataplane: carrier, Host: fake.NoHost{}, Log: slog.New(slog.DiscardHandler)}),
		Checks: found, Names: names.New(names.Options{StateDir: stateDir, Kick: published.Kick, MaxEtcd: func() int { return 0 }}), Outliers: outlier.New(outlier.Options{Events: history, Kick: published.Kick}),
		LocalAddresses: func() (own, networked []netip.Addr, err error) { return nil, nil, nil }, Reserved: func() []balancer.Reserved { return nil },
		Awaiting: func(*model.State, time.Time) {}, Compiled: func(_, _ *model.State, _ time.Time) {},
	}
}

// TestWaiting blocks the loop, like a disk that hangs. The function Waiting must report how long
// the loop has been blocked, whether the loop works on a snapshot or on a kick.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(t, t.TempDir())
		stuck := make(chan struct{})
		o.Compiled = func(_, _ *model.State, _ time.Time) { <-stuck }
		m := model.New(o)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()
		expect := func(want time.Duration) {
			t.Helper()
			synctest.Wait()
			if got := m.Waiting(); got != want {
				t.Errorf("Waiting() = %s, want %s", got, want)
			}
		}
		m.Publish(store.Snapshot{Connected: true, Services: snap.Map[balancer.Name, *balancer.Service]{}})
		time.Sleep(time.Minute)
		expect(time.Minute)
		stuck <- struct{}{}
		expect(0)
		time.Sleep(time.Minute)
		m.Kick()
		time.Sleep(2 * time.Minute)
		expect(2 * time.Minute)
		m.Publish(store.Snapshot{Connected: true})
		time.Sleep(time.Minute)
		expect(3 * time.Minute)
		close(stuck)
		expect(0)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestWaitsAtRest makes the store unreadable while an override expires. The loop must not spin.
func TestWaitsAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := options(t, dir)
		o.Patient = true
		const lapsed = `{"version": 1, "overrides": [{"service": "web", "address": "192.0.2.1:80", "draining": true, "expires": "1999-01-01T00:00:00Z"}]}`
		if err := os.WriteFile(filepath.Join(dir, "overrides.json"), []byte(lapsed), 0o600); err != nil {
			t.Fatal(err)
		}
		m := model.New(o)
		if m.State().Local.Len() != 1 {
			t.Fatal("after the start: number of local overrides is not 1, want the saved override")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()
		m.Publish(store.Snapshot{Err: errors.New("etcd is away")})
		states := 0
		for minute := time.After(time.Minute); minute != nil; {
			changed := m.Changed()
			select {
			case <-changed:
				states++
			case <-minute:
				minute = nil
			}
		}
		if states > 10 {
			t.Errorf("states in a minute of waiting = %d, want at most 10", states)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestAddressesUnsettled changes the host's addresses so quickly that they can't be listed. The
// model must not report a problem, and must list the addresses again.
func TestAddressesUnsettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, a, lists := options(t, t.TempDir()), netip.MustParseAddr("192.0.2.1"), 0
		o.LocalAddresses = func() (own, networked []netip.Addr, err error) {
			if lists++; lists == 1 {
				return nil, nil, host.ErrUnsettled
			}
			return []netip.Addr{a}, nil, nil
		}
		m := model.New(o)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()
		m.Publish(store.Snapshot{Connected: true})
		synctest.Wait()
		m.Kick()
		synctest.Wait()
		if got := m.State().Env.Local; !slices.Equal(got, []netip.Addr{a}) {
			t.Errorf("addresses = %v, want %s", got, a)
		}
		if all, _ := o.Events.Read(0, 10); len(all) > 0 {
			t.Errorf("events = %v, want none", all)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
