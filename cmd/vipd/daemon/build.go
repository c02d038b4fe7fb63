package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/reserved"
	"vipd/cmd/internal/sockets"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/vipd/daemon/internal/accesslog"
	"vipd/cmd/vipd/daemon/internal/agents"
	"vipd/cmd/vipd/daemon/internal/apiserver"
	"vipd/cmd/vipd/daemon/internal/checks"
	"vipd/cmd/vipd/daemon/internal/duplicates"
	"vipd/cmd/vipd/daemon/internal/failover"
	"vipd/cmd/vipd/daemon/internal/fleet"
	"vipd/cmd/vipd/daemon/internal/hostwatch"
	"vipd/cmd/vipd/daemon/internal/leaving"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/cmd/vipd/daemon/internal/metrics"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/modeswitch"
	"vipd/cmd/vipd/daemon/internal/names"
	"vipd/cmd/vipd/daemon/internal/outlier"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/transitions"
	"vipd/cmd/vipd/daemon/internal/unanswered"
	"vipd/cmd/vipd/daemon/internal/web"
	"vipd/cmd/vipd/owner/cleanup"
	"vipd/dataplane"
	onhost "vipd/dataplane/failover"
	"vipd/dataplane/host"
	"vipd/dataplane/probe"
	"vipd/dataplane/resolve"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/statedir"
	"vipd/store/tomlfile"
)

// build creates the parts. A part is created after all parts that it needs..
func (d *Daemon) build() (err error) {
	hosting := modes.HostOptions(d.config)
	hosting.Log = d.component("host")
	if d.host, err = host.New(hosting); err != nil {
		return err
	}
	if err := d.checkEmptied(); err != nil {
		return err
	}
	published := model.NewPublished(d.config)
	if err := d.openStateDir(published); err != nil {
		return err
	}
	d.configuration = liveconfig.New(d.ConfigFile, d.Mode, d.config, published.Kick)
	choice := modeswitch.Choice{Modes: d.Modes, Configuration: d.configuration, Log: d.Log, Events: d.events}
	first, err := choice.Make(context.Background())
	if err != nil {
		return err
	}
	d.host.SetMode(first.Dataplane.Traits().Needs)
	d.metrics = d.newMetrics()
	if err := d.newEngine(first.Dataplane); err != nil {
		return err
	}
	if err := d.newChecks(published); err != nil {
		return err
	}
	d.newNames(published)
	d.outliers.Listen(first.Dataplane)
	dataplane.Inherit(first.Dataplane, d.inherited)
	d.inherited = nil
	if err := d.newSource(); err != nil {
		return err
	}
	if err := d.newFailover(published); err != nil {
		d.component("host").Warn("leftovers of vipd owner can't be removed", "err", err)
	}
	d.watch = hostwatch.New(d.WatchInterval)
	d.duplicates = duplicates.New(duplicates.Options{
		State: d.compiled, Interfaces: doctor.ThisHost().Interfaces, Neighbours: onhost.Neighbours, Elsewhere: onhost.Elsewhere, Again: d.WatchInterval,
	})
	d.transitions = transitions.New(transitions.Options{
		Events: d.events, Started: d.started, Files: d.fleet == nil, Began: d.fleet.Began, DownSince: d.checks.DownSince,
		Refused: d.metrics.ReloadFailed, Drains: d.metrics.Drained, Panics: d.metrics.Panicked,
		Engine: d.engine, Reached: d.fleet.Reached, HostProblems: d.hostProblems,
	})
	d.model = d.newModel(published, first)
	d.counters.Open(d.config.RunDir, d.component("counters"))
	d.modeSwitch = modeswitch.New(modeswitch.Options{
		Choice: choice, Config: d.config, Engine: d.engine, Adopt: d.model.Adopt, Kick: published.Kick,
		SetNeeds: d.host.SetMode, Listen: d.outliers.Listen, Counters: &d.counters,
	}, first)
	d.access = d.newAccessLog(published)
	d.views = status.Sources{
		Version: d.Version, Started: d.started, ConfigFile: d.ConfigFile, Config: d.config, Model: d.model, Modes: d.modeSwitch, Engine: d.engine,
		Counters: &d.counters, Checks: d.checks, HostProblems: d.hostProblems, Addresses: d.host.Addresses, Fleet: d.fleet, Ownership: d.failover.Summary,
	}
	return nil
}

// openStateDir creates state_dir if it is missing. It rejects a directory that other users can
// write to.
func (d *Daemon) openStateDir(published *model.Published) error {
	d.stateDir = statedir.New(d.config.StateDir, published.Kick) // the next run of the model's loop reports a file that can't be saved
	if err := d.stateDir.Check(folder.CheckFiles); err != nil {
		return configError{fmt.Errorf("state_dir: %w", err)}
	}
	err := d.stateDir.Check(func(path string) error {
		return folder.Make(path, func(path string) error { return os.MkdirAll(path, 0o755) })
	})
	if err != nil {
		return folderError(err)
	}
	return nil
}

func (d *Daemon) newAccessLog(published *model.Published) *accesslog.Log {
	return accesslog.New(accesslog.Options{
		Default: d.config.Userspace.AccessLog, Log: d.component("access"), Follow: d.modeSwitch.Follow,
		Services: func() (snap.Map[balancer.Name, *balancer.Service], <-chan struct{}) {
			changed := published.Changed() // read before the state, so no change is missed
			return published.State().Inputs.Services, changed
		},
	})
}

func (d *Daemon) component(name string) *slog.Logger { return d.Log.With("component", name) }

// newMetrics returns the metrics. They read the other parts only during a scrape.
func (d *Daemon) newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{
		Views: &d.views, PerEndpoint: d.config.Metrics.PerEndpoint, Events: d.events,
		AccessLogLost: func() uint64 { return d.access.Lost() }, Owner: func() *api.OwnerStatus { return d.failover.Status() },
	})
}

// api returns the handler for the API's socket.
func (d *Daemon) api() http.Handler {
	return apiserver.Handler(apiserver.Options{
		Views: &d.views, ChangeGroup: d.config.API.ChangeGroup, Events: d.events, Log: d.Log,
		Reload: d.Reload, Try: d.Try, Settle: func(ctx context.Context) { d.settle(ctx) }, Examined: d.examined, Silence: d.unanswered.StatsOf,
		Ownership: func(ctx context.Context) api.Ownership { return d.failover.Ownership(ctx, d.serving()) },
		MoveVIP:   d.failover.Move, Standby: d.failover.SetStandby,
	})
}

// webHandler returns the handler for api.http.
func (d *Daemon) webHandler() http.Handler {
	o := web.Options{Views: &d.views, Metrics: d.metrics.ServeHTTP, Events: d.events}
	if d.fleet != nil {
		o.Fleet = d.fleet.Nodes
	}
	return web.Handler(o)
}

// newEngine creates the engine with dp as its first dataplane. If tracing is configured, it also
// creates a tracer for the engine's passes.
func (d *Daemon) newEngine(dp dataplane.Dataplane) (err error) {
	var rounds func(*dataplane.Round)
	if to := d.config.Tracing.OTLPEndpoint; to != "" {
		o := tracing.Options{Endpoint: to, Node: d.config.Node, Version: d.Version, Log: d.component("tracing")}
		if d.config.Store.Kind == config.EtcdStore {
			if o.Commands, err = etcd.NewStore(client.Config(d.config.Etcd)); err != nil {
				return err
			}
		}
		if d.tracing, err = tracing.New(o); err != nil {
			return err
		}
		rounds = d.tracing.Round
	}
	d.engine = dataplane.NewEngine(dataplane.Options{
		Dataplane: dp, Host: d.host, Log: d.component("engine"), Metrics: d.metrics, Trace: rounds,
		MinInterval: d.config.Sync.MinInterval, ProbeInterval: d.config.Sync.ProbeInterval, ResyncInterval: d.config.Sync.ResyncInterval,
	})
	return nil
}

// leaseTime is how long other nodes still see this node after its process has died. It is long
// enough for three failed renewals.
const leaseTime = 15 * time.Second

// newChecks creates the health checks and the agent checks, and the detectors for outliers and for
// unanswered connections.
func (d *Daemon) newChecks(published *model.Published) (err error) {
	o := checks.Options{
		StateDir: d.stateDir, Node: d.config.Node, Events: d.events, Kick: published.Kick,
		// A closure breaks the cycle between checks and outliers: checks send their results to
		// outliers, which in turn requests early checks.
		OnResult: func(h probe.TargetResult) { d.outliers.Process(h.Target, h.At, h.Rules.Rise, h.Result) },
		Observe:  d.metrics.Checked, Lease: leaseTime, Log: d.component("health"),
	}
	if d.config.Store.Kind == config.EtcdStore {
		o.Etcd = (*client.Config)(&d.config.Etcd)
	}
	if d.checks, err = checks.New(o); err != nil {
		return err
	}
	d.agents = agents.New(agents.Options{StateDir: d.stateDir, Record: d.events.Record, Kick: published.Kick})
	d.unanswered = unanswered.New(unanswered.Options{
		Counts:  d.counters.Counts,
		Service: func(name balancer.Name) *balancer.Service { return published.State().Snapshot.Services.At(name) },
		Health:  func(t balancer.Target) balancer.Verdict { return published.State().Inputs.Health.At(t) },
		Source:  sourceTo,
	})
	d.outliers = outlier.New(outlier.Options{
		Rules: d.Ejection, Events: d.events, Hint: d.checks.Hint, Kick: published.Kick, Ejects: d.metrics.Ejected,
		Unanswered: d.unanswered.Record,
	})
	return nil
}

// newNames creates the part that looks up endpoints defined by host name.
func (d *Daemon) newNames(published *model.Published) {
	client := resolve.New(resolve.Options{Servers: func() []string { return d.configuration.Current().Resolver.Servers }})
	d.names = names.New(names.Options{
		StateDir: d.stateDir, Answer: client.Answer, MaxEtcd: func() int { return d.configuration.Current().Resolver.MaxNames }, Kick: published.Kick,
		Uncheckable: d.checks.Uncheckable,
	})
}

// sourceTo returns the address from which this host would send packets to a. It sends no packet.
func sourceTo(a netip.Addr) netip.Addr {
	c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = c.Close() }() // nothing was written, so closing loses no data
	from, _ := netip.ParseAddrPort(c.LocalAddr().String())
	return from.Addr()
}

// newSource creates the source of services: the node's files and, if configured, the fleet's store.
func (d *Daemon) newSource() (err error) {
	c, log := d.config, d.component("store")
	d.files = tomlfile.New(tomlfile.Options{
		Main: d.ConfigFile, StateDir: d.stateDir, Check: settingsProblems, AllowEmpty: d.AllowEmpty, Pended: d.pended, Log: log,
	})
	if c.Store.Kind != config.EtcdStore {
		d.source = d.files
		return nil
	}
	d.reserved = reserved.New(reserved.Options{
		Endpoints: c.Etcd.Endpoints, Gateways: d.host.Gateways, Sources: d.host.Sources, Sockets: sockets.All, Own: sockets.Own, HTTP: c.API.HTTP,
	})
	if d.fleet, err = fleet.New(fleet.Options{
		Config: client.Config(c.Etcd), Name: c.Node, StateDir: d.stateDir, Defaults: c.Defaults,
		Version: d.Version, Started: d.started, Lease: leaseTime, Log: log, Events: d.events, Configured: d.configuration.Configure, Sources: d.reserved.Sources,
		Zone: func() string { return d.configuration.Current().Zone }, Pended: d.pended,
	}); err != nil {
		return err
	}
	d.source = &store.Joined{Local: d.files, Fleet: d.fleet.Source()}
	return nil
}

// settingsProblems returns the problems in all sections of the configuration file except services.
func settingsProblems(doc store.Document) []balancer.Problem {
	_, problems := config.Decode(doc)
	return problems
}

// newFailover creates the reporter to vipd owner if this host may own VIPs. Otherwise, it removes
// the state that an earlier configuration saved.
func (d *Daemon) newFailover(published *model.Published) error {
	if c := d.config; c.Ownership.Enabled {
		o := failover.Options{
			Socket: filepath.Join(c.RunDir, api.OwnerSocket), Changed: published.Changed, Grace: c.Ownership.RestartGrace, Events: d.events, StateDir: d.stateDir,
		}
		if c.Decider() == config.ByVRRP {
			o.Standby = d.configuration.SetStandby
		}
		d.failover = failover.New(o)
		return nil
	}
	_, err := cleanup.Remove(d.config.RunDir, false)
	return err
}

// newModel creates the model, whose initial dataplane is that of the mode first.
func (d *Daemon) newModel(published *model.Published, first *modeswitch.Chosen) *model.Model {
	o := model.Options{
		Published: published, Configuration: d.configuration, StateDir: d.stateDir, Events: d.events,
		Carrier: first.Dataplane, Engine: d.engine, Checks: d.checks, Agents: d.agents, Names: d.names, Outliers: d.outliers,
		LocalAddresses: func() (own, networked []netip.Addr, err error) { return d.host.LocalAddresses(nil) },
		Reserved:       d.reserved.All,
		// A previous vipd's rules may still serve the fleet's services. If so, vipd waits for the
		// fleet's store without limit.
		Patient:  d.fleet != nil && first.Keeps && d.host.Inherited(),
		Awaiting: d.transitions.Awaiting, Compiled: d.transitions.Compiled,
	}
	if d.tracing != nil {
		o.Traced = func(before, s *model.State, began time.Time) {
			d.tracing.Compiled(&tracing.Compile{
				Snapshot: &s.Snapshot, Seen: s.Desired.Revision.Seen, Began: began, Ended: time.Now(), Before: before.Desired, Desired: s.Desired,
			})
		}
	}
	return model.New(o)
}

// compiled returns the last compiled state, and a channel that is closed when the next state is
// published.
func (d *Daemon) compiled() (*model.State, <-chan struct{}) {
	changed := d.model.Changed() // read before the state, so no change is missed
	return d.model.State(), changed
}

// leavingVIPs returns the options for package leaving.
func (d *Daemon) leavingVIPs() leaving.Options {
	return leaving.Options{
		State: d.compiled,
		Done: func() (snap.Map[balancer.Key, *balancer.Frontend], <-chan struct{}) {
			changed := d.engine.Changed()
			return d.engine.Status().Done, changed
		},
		Mode: func() any { return d.modeSwitch.Serving() },
		Connections: func(ctx context.Context, visit func(*dataplane.Connection) error) error {
			return d.modeSwitch.Connections(ctx, dataplane.ConnectionQuery{}, visit)
		},
		Tracked: d.host.Tracked, Release: d.model.Release,
	}
}

// hostProblems returns the problems that do not depend on the compiled state, such as features that
// the host lacks and conflicts with other programs.
func (d *Daemon) hostProblems() []balancer.Problem {
	all := slices.Concat(d.startProblems(), d.host.Problems(), d.watch.Problems(), d.duplicates.Problems(), d.failover.Problems(), d.unanswered.Problems(), d.access.Problems(), d.web.Problems())
	if why := d.modeSwitch.Serving().Dataplane.Traits().Lacks; why != "" {
		all = append(all, balancer.Problem{Severity: balancer.SeverityError, Text: why})
	}
	return all
}

// serving returns the state that the failover reporter sends to vipd owner.
func (d *Daemon) serving() failover.Serving {
	v := d.views.Look()
	return failover.Serving{State: v.State, Unready: v.Unready(), Keeps: v.Mode.Keeps}
}

// examined describes this host for package doctor, in enough detail to check firewalls and sockets.
func (d *Daemon) examined() doctor.Host {
	v := d.views.Look()
	h := doctor.ThisHost()
	h.Config = v.State.Config
	h.Modes = d.Modes
	h.Own = sockets.Own
	h.Status = &api.Status{Mode: v.ModeStatus(), Addresses: v.Addresses()}
	for _, f := range v.State.Desired.Frontends.All() {
		h.Frontends = append(h.Frontends, doctor.FrontendOf(f))
	}
	return h
}
