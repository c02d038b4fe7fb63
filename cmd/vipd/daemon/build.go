package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/internal/fence"
	"vipd/cmd/internal/reserved"
	"vipd/cmd/internal/sockets"
	"vipd/cmd/vipd/daemon/internal/accesslog"
	"vipd/cmd/vipd/daemon/internal/checks"
	"vipd/cmd/vipd/daemon/internal/firewall"
	"vipd/cmd/vipd/daemon/internal/fleet"
	"vipd/cmd/vipd/daemon/internal/fleetchecks"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/modeswitch"
	"vipd/cmd/vipd/daemon/internal/outlier"
	"vipd/cmd/vipd/daemon/internal/owned"
	"vipd/cmd/vipd/daemon/internal/recorder"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/tracing"
	"vipd/dataplane"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/tomlfile"
)

// source is what the daemon needs of a store.
type source interface {
	store.Source
	store.Reloader
}

// build makes the parts and connects them.
func (d *Daemon) build() (err error) {
	c := d.config
	component := func(name string) *slog.Logger { return d.Log.With("component", name) }
	if d.host, err = d.newHost(component("host")); err != nil {
		return err
	}
	if err := d.checkEmptied(); err != nil {
		return err
	}
	choice := modeswitch.Options{
		Modes: d.Modes, Config: c, Log: d.Log, Journal: d.journal, Tell: d.host.SetMode, Counters: &d.counters,
		By: model.ModeBy(d.ConfigFile, d.Mode, ""),
	}
	first, err := modeswitch.First(context.Background(), choice)
	if err != nil {
		return err
	}
	d.host.SetMode(first.Dataplane.Traits().Needs)
	d.metrics = newMetrics(d)
	var rounds func(*dataplane.Round)
	if to := c.Tracing.OTLPEndpoint; to != "" {
		if d.tracing, err = tracing.New(tracing.Options{Endpoint: to, Node: c.Node, Version: d.Version, Log: component("tracing")}); err != nil {
			return err
		}
		rounds = d.tracing.Round
	}
	d.engine = dataplane.NewEngine(dataplane.Options{
		Dataplane: first.Dataplane, Host: d.host, Log: component("engine"), Metrics: d.metrics, Trace: rounds,
		MinInterval: c.Sync.MinInterval, ProbeInterval: c.Sync.ProbeInterval, ResyncInterval: c.Sync.ResyncInterval,
	})
	if d.checks, err = d.newChecks(); err != nil {
		return err
	}
	d.outliers = outlier.New(outlier.Options{
		Rules: d.Ejection, Journal: d.journal, Hint: d.checks.Hint, Kick: func() { d.model.Kick() }, Ejects: d.metrics.ejections.add,
	})
	d.outliers.Listen(first.Dataplane)
	first.Dataplane.Inherit(d.inherited)
	d.inherited = nil
	if c.Store.Kind == config.EtcdStore {
		d.reserved = reserved.New(reserved.Options{
			Endpoints: c.Etcd.Endpoints, Gateways: d.host.Gateways, Sockets: sockets.All, Own: sockets.Own, HTTP: c.API.HTTP,
		})
	}
	d.model = d.newModel(first.Dataplane)
	d.firewall = firewall.New(firewall.Options{Host: d.examined, Interval: d.FirewallInterval})
	d.record = d.newRecorder()
	choice.Engine, choice.Listen = d.engine, d.outliers.Listen
	choice.ConfiguredBy = d.model.ConfiguredBy
	choice.Configured, choice.Changed, choice.Adopt, choice.Kick = d.model.Configured, d.model.ModeChanged(), d.model.Adopt, d.model.Kick
	d.modeSwitch = modeswitch.New(choice, first)
	if to := c.Userspace.AccessLog; to != "" {
		path := to
		if to == config.JournalLog {
			path = ""
		}
		d.access = accesslog.New(accesslog.Options{Path: path, Log: component("access"), Follow: d.modeSwitch.Follow})
	}
	if err := d.openStore(); err != nil {
		return err
	}
	d.views = status.Sources{
		Version: d.Version, Started: d.started, ConfigFile: d.ConfigFile, Config: c, Model: d.model, Modes: d.modeSwitch, Engine: d.engine,
		Counters: &d.counters, Checks: d.checks, HostProblems: d.hostProblems, Host: d.host,
	}
	if d.fleet != nil {
		d.views.Fleet = d.fleet
	}
	if c.Ownership.Enabled && d.fleet != nil {
		d.owned = owned.New(owned.Options{
			Socket: filepath.Join(c.RunDir, api.OwnerSocket), State: d.model.State, Changed: d.model.Changed,
			Unready: func() []string { return d.views.Look().Unready() }, Keeps: func() bool { return d.modeSwitch.Serving().Keeps },
			Grace: c.Ownership.RestartGrace, Journal: d.journal,
		})
		d.views.Ownership = d.owned.Summary
	} else if _, err := fence.Remove(c.RunDir, false); err != nil { // of a time at which this host owned VIPs
		component("host").Warn("what vipd owner has left stays", "err", err)
	}
	return nil
}

// hostProblems are what the host can't do, and what on it is in the way.
func (d *Daemon) hostProblems() []balancer.Problem {
	all := slices.Concat(d.host.Problems(), d.firewall.Problems())
	if d.owned != nil {
		all = append(all, d.owned.Problems()...)
	}
	return all
}

// examined is this host as doctor sees it, as far as looking at firewalls takes it.
func (d *Daemon) examined() doctor.Host {
	v := d.views.Look()
	h := doctor.ThisHost()
	h.Config, h.Modes = v.State.Config, d.Modes
	h.Status = &api.Status{Mode: v.ModeStatus()}
	for key, f := range v.State.Desired.Frontends.All() {
		h.Frontends = append(h.Frontends, doctor.Frontend{Key: key, NodePort: f.NodePort, Service: f.Service})
	}
	return h
}

// leaseTime is how long after its end a node is still seen by others: three renewals may fail.
const leaseTime = 15 * time.Second

// newChecks makes the health checks, which a fleet may share.
func (d *Daemon) newChecks() (*checks.Checks, error) {
	o := checks.Options{
		StateDir: d.config.StateDir, Node: d.config.Node, Journal: d.journal, Kick: func() { d.model.Kick() },
		Service: func(name balancer.Name) *balancer.Service { return d.model.State().Snapshot.Services.At(name) },
		Heard:   func(t balancer.Target, at netip.AddrPort, res health.Result) { d.outliers.Heard(t, at, res) },
		Observe: d.metrics.checked,
	}
	if d.config.Store.Kind == config.EtcdStore {
		o.Fleet = &fleetchecks.Options{Config: etcd.Config(d.config.Etcd), Log: d.Log.With("component", "health"), Lease: leaseTime}
	}
	return checks.New(o)
}

// newModel makes the model, which compiles for carrier.
func (d *Daemon) newModel(carrier dataplane.Dataplane) *model.Model {
	var traced func(before, s *model.State, began time.Time)
	if d.tracing != nil {
		traced = func(before, s *model.State, began time.Time) {
			d.tracing.Compiled(&tracing.Compile{
				Snapshot: &s.Snapshot, Seen: s.Desired.Revision.Seen, Began: began, Ended: time.Now(), Before: before.Desired, Desired: s.Desired,
			})
		}
	}
	return model.New(model.Options{
		Traced:     traced,
		ConfigFile: d.ConfigFile, Config: d.config, Mode: d.Mode, Started: d.started, Journal: d.journal,
		Carrier: carrier, Engine: d.engine, Checks: d.checks, Outliers: d.outliers,
		LocalAddresses: func() ([]netip.Addr, error) { return d.host.LocalAddresses(nil) },
		Reserved:       d.reserved.All,
		// What a fleet has is waited for as long as it takes where an earlier vipd has left it in the kernel: it serves on there.
		Patient: func() bool { return d.fleet != nil && d.modeSwitch.Serving().Keeps && d.host.Inherited() },
		Reread: func(c config.Config) {
			if d.fleet != nil {
				d.fleet.Source().SetDefaults(c.Defaults)
			}
		},
		Awaiting: func(s *model.State, now time.Time) { d.record.Awaiting(s, now) },
		Compiled: func(before, s *model.State, now time.Time) { d.record.Compiled(before, s, now) },
	})
}

func (d *Daemon) newRecorder() *recorder.Recorder {
	return recorder.New(recorder.Options{
		Journal: d.journal, Started: d.started, Files: d.config.Store.Kind != config.EtcdStore, DownSince: d.checks.DownSince,
		Began:   func(s *model.State, now time.Time) { d.fleet.Began(s, now) },
		Refused: d.metrics.reloadFailed, Drains: d.metrics.drained.add, Panics: d.metrics.panicked.add, Engine: d.engine, HostProblems: d.hostProblems, HostChanged: d.firewall.Changed(),
		Applied: func() int64 { return d.views.Look().Applied() },
	})
}

// openStore makes the source of services: the node's files and, where the configuration says so, what a fleet shares.
func (d *Daemon) openStore() error {
	log := d.Log.With("component", "store")
	d.files = tomlfile.New(tomlfile.Options{Main: d.ConfigFile, Log: log})
	if d.config.Store.Kind != config.EtcdStore {
		d.source = d.files
		return nil
	}
	var err error
	if d.fleet, err = fleet.New(fleet.Options{
		Config: etcd.Config(d.config.Etcd), Name: d.config.Node, StateDir: d.config.StateDir, Defaults: d.config.Defaults,
		Version: d.Version, Started: d.started, Lease: leaseTime, Log: log, Journal: d.journal, Configured: d.model.Configure,
	}); err != nil {
		return err
	}
	d.source = &store.Joined{Local: d.files, Fleet: d.fleet.Source()}
	return nil
}
