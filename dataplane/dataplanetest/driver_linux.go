package dataplanetest

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/test/wait"
)

// driver is a minimal daemon for tests. It compiles services, remembers drains, and runs an engine
// that applies the result.
type driver struct {
	engine  *dataplane.Engine
	host    dataplane.Host
	log     *slog.Logger
	probe   time.Duration
	env     balancer.Env
	expire  *time.Timer // fires when the first drain ends
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex // guards the fields below, which tests and expireDrains change
	compiler balancer.Compiler
	services snap.Map[balancer.Name, *balancer.Service]
	health   snap.Map[balancer.Target, balancer.Verdict]
	vips     snap.Map[netip.Addr, *balancer.VIP]
	compiled balancer.Desired
	revision int64
}

// settleTime is how long the engine may need to apply a change, on a machine that also runs dozens
// of other processes.
const settleTime = time.Minute

// driverProbe is the engine's ProbeInterval, unless a test case uses another.
const driverProbe = 500 * time.Millisecond

// newDriver returns a driver for dp and host. The driver does nothing until start is called.
func newDriver(dp dataplane.Dataplane, host dataplane.Host, log *slog.Logger, env balancer.Env, probe time.Duration) *driver {
	d := &driver{host: host, log: log, probe: probe, env: env, expire: time.NewTimer(time.Hour)}
	d.drives(dp)
	return d
}

// drives makes the driver replace its dataplane with dp, and creates an engine for dp. The driver
// retains the wanted state and the remembered drains. The engine does nothing until start is
// called.
func (d *driver) drives(dp dataplane.Dataplane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.env.Capabilities = dp.Capabilities()
	d.engine = dataplane.NewEngine(dataplane.Options{
		Dataplane: dp, Host: d.host, Log: d.log,
		MinInterval: 2 * time.Millisecond, ProbeInterval: d.probe,
		RetryMin: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond,
	})
	if d.revision > 0 {
		d.publishLocked()
	}
}

// judge discards all earlier health verdicts, and records this verdict for the targets. The next
// call of set uses it.
func (d *driver) judge(verdict balancer.Verdict, targets ...balancer.Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.health = snap.Map[balancer.Target, balancer.Verdict]{}
	for _, t := range targets {
		d.health = d.health.Set(t, verdict)
	}
}

// start runs the engine until stop is called. Afterwards, start may be called again.
func (d *driver) start() {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	d.running.Go(func() { _ = d.engine.Run(ctx) }) // always returns nil
	d.running.Go(func() { d.expireDrains(ctx) })
}

// stop stops the engine. When it returns, nothing calls the dataplane any longer.
func (d *driver) stop() {
	d.cancel()
	d.running.Wait()
}

// expireDrains compiles the services again whenever a drain expires.
func (d *driver) expireDrains(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.expire.C:
			d.mu.Lock()
			d.publishLocked()
			d.mu.Unlock()
		}
	}
}

// set requests exactly these services, and returns the revision of the resulting state. It does not
// wait until the state is applied.
func (d *driver) set(services ...*balancer.Service) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all snap.Map[balancer.Name, *balancer.Service]
	for _, s := range services {
		all = all.Set(s.Name, s)
	}
	d.services = all
	d.publishLocked()
	return d.revision
}

func (d *driver) publishLocked() {
	now := time.Now()
	d.compiled = d.compiler.Next(d.env, balancer.Inputs{Services: d.services, Health: d.health, VIPs: d.vips}, now)
	d.revision++
	d.compiled.Revision = balancer.Revision{Store: d.revision, Seen: now}
	d.engine.Set(d.compiled)
	if end := d.compiler.Memory.NextExpiry(); !end.IsZero() {
		d.expire.Reset(time.Until(end) + time.Millisecond)
	}
}

func (d *driver) wanted() balancer.Desired {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.compiled
}

// wait waits until the engine has applied a revision and no frontend fails.
func (d *driver) wait(revision int64) error {
	within := wait.Scaled(settleTime)
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		changed := d.engine.Changed()
		s := d.engine.Status()
		if s.Ready && s.Applied.Store >= revision && len(s.Failing) == 0 && s.LastError == "" {
			return nil
		}
		select {
		case <-changed:
		case <-deadline.C:
			return fmt.Errorf("revision %d was not applied within %v: applied revision %d, failing frontends %v, last error %q",
				revision, within, s.Applied.Store, s.Failing, s.LastError)
		}
	}
}

// quiet returns a logger that writes warnings and errors to the test's output.
func quiet(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
