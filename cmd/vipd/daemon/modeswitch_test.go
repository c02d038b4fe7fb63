package daemon_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
	"vipd/test/program"
	"vipd/test/wait"
)

// broken is a dataplane that passes its trial but fails each apply.
type broken struct {
	dataplane.Dataplane
	closed *atomic.Int32
}

func (b broken) Unwrap() dataplane.Dataplane { return b.Dataplane }

func (broken) Apply(context.Context, []dataplane.Change) error {
	return errors.New("the kernel refuses")
}

func (b broken) Close(ctx context.Context, keep bool) error {
	b.closed.Add(1)
	return b.Dataplane.Close(ctx, keep)
}

// spare returns a mode with another name that terminates connections in this process, like
// userspace mode.
func spare(name config.ModeName, wrap func(dataplane.Dataplane) (dataplane.Dataplane, error)) modes.Mode {
	m := noRoot()[0]
	m.Name = name
	make := m.New
	m.New = func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
		dp, err := make(ctx, c, log)
		if err != nil {
			return nil, err
		}
		return wrap(dp)
	}
	return m
}

// configure replaces a text in the configuration and writes it, followed by services.
func (n *node) configure(old, with, services string) {
	n.t.Helper()
	program.Save(n.t, n.file(), strings.Replace(header, old, with, 1)+services)
}

// TestAbandonsFailingMode switches to a mode that can't apply anything. vipd must abandon it, and
// the previous mode must keep serving throughout.
func TestAbandonsFailingMode(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "one")
	var closed atomic.Int32
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{
		spare(config.IPTablesMode, func(dp dataplane.Dataplane) (dataplane.Dataplane, error) { return broken{dp, &closed}, nil }),
		noRoot()[0],
	}}
	n.write(web)
	n.start()
	t.Cleanup(func() { n.stop() })
	n.configure(`mode = "userspace"`, `mode = "iptables"`, web)
	wait.For(t, time.Minute, "the mode to be tried and abandoned", func() bool {
		if got := ask("127.40.0.1:8080"); got != "one" {
			t.Fatalf("during the switch: answer = %q, want \"one\"", got)
		}
		return closed.Load() > 0
	})
	wait.For(t, time.Minute, "the reason in status", func() bool {
		m := n.status().Mode
		return m.InUse == "userspace" && m.Wanted == "iptables" && m.Fallback && strings.Contains(m.Reason, "the kernel refuses")
	})
	if got := ask("127.40.0.1:8080"); got != "one" {
		t.Errorf("after the switch: answer = %q, want \"one\"", got)
	}
	for _, part := range []string{
		"iptables mode can't apply the wanted state: switching back: ", "\niptables mode is not usable here, so userspace mode is used: not iptables: ",
	} {
		if got := n.eventsOf(events.Mode); strings.Count(got, part) != 1 {
			t.Errorf("mode events: want one with the text %q, got\n%s", part, got)
		}
	}
}

// TestStopDuringTrial stops vipd while it tries a mode. vipd must not report that the mode failed.
func TestStopDuringTrial(t *testing.T) {
	tried := make(chan struct{})
	slow := noRoot()[0]
	slow.Name = config.IPTablesMode
	slow.New = func(ctx context.Context, _ config.Config, _ *slog.Logger) (dataplane.Dataplane, error) {
		close(tried)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	log := &lines{Handler: slog.DiscardHandler}
	n := &node{t: t, dir: t.TempDir(), log: log, modes: []modes.Mode{slow, noRoot()[0]}}
	n.write(web)
	n.start()
	n.configure(`mode = "userspace"`, `mode = "iptables"`, web)
	<-tried
	n.stop()
	if got := strings.Join(log.all, "\n"); strings.Contains(got, "not usable") {
		t.Errorf("log =\n%s\nwant no message that the mode failed", got)
	}
}

// TestStrictModeWhileRunning selects a mode that can't be used here. Nothing may change, and a
// problem must be reported.
func TestStrictModeWhileRunning(t *testing.T) {
	n := startNode(t, web)
	n.configure(`mode = "userspace"`, "mode = \"ipvs\"\nstrict_mode = true", web)
	wait.For(t, time.Minute, "the problem", func() bool {
		m := n.status().Mode
		return m.InUse == "userspace" && m.Fallback && strings.Contains(n.problems(), "strict_mode forbids another")
	})
	n.configure("", "", web)
	wait.For(t, time.Minute, "the end of the problem", func() bool { return !n.status().Mode.Fallback && n.problems() == "" })
}

// willing is a dataplane whose Apply succeeds but has no effect.
type willing struct{ dataplane.Dataplane }

func (w willing) Unwrap() dataplane.Dataplane { return w.Dataplane }

func (willing) Observe(context.Context) (dataplane.Observation, error) {
	return dataplane.Observation{}, nil
}
func (willing) Intact(context.Context) (string, error)          { return "", nil }
func (willing) Apply(context.Context, []dataplane.Change) error { return nil }
func (willing) Traits() dataplane.Traits                        { return dataplane.Traits{} }

// TestChoosesBetterModeAtReload makes a better mode available. Mode auto must choose it at the next
// reload but not earlier, and counts must not change.
func TestChoosesBetterModeAtReload(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "one")
	var works atomic.Bool
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{
		spare(config.IPTablesMode, func(dp dataplane.Dataplane) (dataplane.Dataplane, error) {
			if works.Load() {
				return willing{dp}, nil
			}
			return nil, errors.Join(errors.New("no iptables"), dp.Close(context.Background(), false))
		}),
		noRoot()[0],
	}}
	n.configure(`mode = "userspace"`, `mode = "auto"`, web)
	n.start()
	t.Cleanup(func() { n.stop() })
	if m := n.status().Mode; m.InUse != "userspace" || m.Fallback || !strings.Contains(m.Reason, "not iptables: no iptables") {
		t.Fatalf("mode = %+v, want userspace without a fallback", m)
	}
	if got := ask("127.40.0.1:8080"); got != "one" {
		t.Fatalf("answer = %q, want \"one\"", got)
	}
	works.Store(true)
	if _, err := n.client.Reload(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if m := n.status().Mode; m.InUse != "iptables" || m.Reason != "the best mode that works here" {
		t.Errorf("mode = %+v, want iptables, the best mode", m)
	}
	wait.For(t, 10*time.Second, "the previous mode to end", func() bool { return ask("127.40.0.1:8080") != "one" })
	wait.For(t, 0, "the counts of the previous mode", func() bool { return n.connections() > 0 })
	want := `userspace mode serves: vipd has started; not iptables: no iptables
iptables mode serves now instead of userspace: the best mode that works here
the previous mode, userspace, is closed`
	wait.For(t, 10*time.Second, "the journal to have all events", func() bool { return n.eventsOf(events.Mode) == want })
}

// connections returns how many connections the only service has counted.
func (n *node) connections() uint64 {
	n.t.Helper()
	var services []api.Service
	n.retry("services", func() (err error) { services, err = n.client.Services(n.t.Context()); return err })
	if len(services) != 1 {
		n.t.Fatal(services)
	}
	return services[0].Ports[0].Connections
}

type stuck struct{ willing }

func (s stuck) Close(ctx context.Context, keep bool) error {
	return errors.Join(errors.New("others hold the tables"), s.willing.Close(ctx, keep))
}

// TestRemovesRulesLater switches away from a mode that can't remove its rules. The rules must be
// removed later, while the next mode serves.
func TestRemovesRulesLater(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "one")
	first := spare(config.IPTablesMode, func(dp dataplane.Dataplane) (dataplane.Dataplane, error) { return stuck{willing{dp}}, nil })
	var removed atomic.Int32
	first.Cleanup = func(_ context.Context, _ config.Config, dry bool) ([]string, error) {
		if !dry {
			removed.Add(1)
		}
		return []string{"delete a chain"}, nil
	}
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{first, noRoot()[0]}}
	n.configure(`mode = "userspace"`, `mode = "iptables"`, web)
	n.start()
	t.Cleanup(func() { n.stop() })
	if m := n.status().Mode; m.InUse != "iptables" || removed.Load() > 0 {
		t.Fatalf("mode = %+v, want iptables; cleanups = %d, want 0", m, removed.Load())
	}
	n.configure("", "", web)
	wait.For(t, time.Minute, "the remains to be removed", func() bool { return removed.Load() > 0 })
	if got := ask("127.40.0.1:8080"); got != "one" {
		t.Errorf("answer = %q, want \"one\"", got)
	}
}

// metered is a dataplane whose drain takes the maximum time. Its counters are in the kernel.
type metered struct{ willing }

func (metered) Traits() dataplane.Traits        { return dataplane.Traits{Drains: true} }
func (metered) Yield(ctx context.Context) error { <-ctx.Done(); return nil }
func (metered) Counters() []dataplane.FrontendCount {
	at := netip.MustParseAddrPort("127.40.1.1:9001")
	return []dataplane.FrontendCount{{Service: "web", Connections: 5, Backends: []dataplane.BackendCount{{Backend: at, Connections: 5, Kept: 5}}}}
}

// TestReturnsToDrainingMode switches back to a mode that is still draining. The mode must adopt its
// kernel objects, and each connection must count once. If another mode is in use at the end, the
// objects must be removed.
func TestReturnsToDrainingMode(t *testing.T) {
	var works atomic.Bool
	var kept, removed atomic.Int32
	works.Store(true)
	first := spare(config.IPVSMode, func(dp dataplane.Dataplane) (dataplane.Dataplane, error) {
		if works.Load() {
			return metered{willing{keeping{dp, &kept}}}, nil
		}
		return nil, errors.Join(errors.New("no IPVS any more"), dp.Close(context.Background(), false))
	})
	first.Keeps = true
	first.Cleanup = func(_ context.Context, _ config.Config, dry bool) ([]string, error) {
		if !dry {
			removed.Add(1)
		}
		return []string{"delete virtual servers"}, nil
	}
	second := spare(config.UserspaceMode, func(dp dataplane.Dataplane) (dataplane.Dataplane, error) { return willing{dp}, nil })
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{first, second}}
	in := func(name string) {
		t.Helper()
		n.configure(`mode = "userspace"`, `mode = "`+name+`"`, web)
		if _, err := n.client.Reload(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		if m := n.status().Mode; m.InUse != name && works.Load() {
			t.Fatalf("mode = %+v, want %s", m, name)
		}
		wait.For(t, 0, "5 connections to be counted in "+name+" mode", func() bool { // while counters are being read, vipd shows the previous counts
			counted := n.connections()
			if counted > 5 {
				t.Fatalf("counted connections = %d in %s mode, want 5", counted, name)
			}
			return counted == 5
		})
	}
	n.configure(`mode = "userspace"`, `mode = "ipvs"`, web)
	n.start()
	t.Cleanup(func() { n.stop() })
	for range 3 {
		in("userspace")
		in("ipvs")
	}
	if kept.Load() != 3 || removed.Load() > 0 {
		t.Errorf("closes that kept objects = %d, removals = %d; want 3 and 0", kept.Load(), removed.Load())
	}
	in("userspace")
	works.Store(false)
	in("ipvs")
	wait.For(t, time.Minute, "the drained objects to be removed", func() bool { return removed.Load() > 0 })
}

// keeping is a dataplane that counts calls of Close, and separately those that kept kernel objects.
type keeping struct {
	dataplane.Dataplane
	kept *atomic.Int32
}

func (k keeping) Unwrap() dataplane.Dataplane { return k.Dataplane }

func (k keeping) Close(ctx context.Context, keep bool) error {
	if keep {
		k.kept.Add(1)
	}
	return k.Dataplane.Close(ctx, keep)
}
