package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/lib/sockerr"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/lockfile"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/netlock"
	"vipd/cmd/internal/reserved"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/vipd/daemon/internal/accesslog"
	"vipd/cmd/vipd/daemon/internal/checks"
	"vipd/cmd/vipd/daemon/internal/duplicates"
	"vipd/cmd/vipd/daemon/internal/failover"
	"vipd/cmd/vipd/daemon/internal/fleet"
	"vipd/cmd/vipd/daemon/internal/hooks"
	"vipd/cmd/vipd/daemon/internal/hostwatch"
	"vipd/cmd/vipd/daemon/internal/httpserve"
	"vipd/cmd/vipd/daemon/internal/leaving"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/cmd/vipd/daemon/internal/metrics"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/modeswitch"
	"vipd/cmd/vipd/daemon/internal/outlier"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/cmd/vipd/daemon/internal/transitions"
	"vipd/cmd/vipd/daemon/internal/unanswered"
	"vipd/cmd/vipd/daemon/internal/web"
	"vipd/dataplane"
	"vipd/dataplane/handover"
	"vipd/dataplane/host"
	"vipd/store"
	"vipd/store/statedir"
	"vipd/store/tomlfile"
)

// Options are what a Daemon is made of.
type Options struct {
	// ConfigFile is vipd.toml.
	ConfigFile string
	// Mode, unless "", wins over the configuration's.
	Mode config.ModeName
	// AllowEmpty has a configuration that says nothing take away what an earlier vipd left. Otherwise New refuses it.
	AllowEmpty bool
	Log        *slog.Logger
	// Replace takes the place of the vipd that runs with the same run_dir, with its sockets and connections.
	Replace bool
	// Hurry has the end of Run wait for connections no more, once it is done. Nil: never.
	Hurry context.Context
	// Version is shown in status and metrics.
	Version string
	// Modes are the dataplanes that this program has, the best first.
	Modes []modes.Mode
	// Ejection says when failed connects eject an endpoint. Default health.DefaultEjectionRules.
	Ejection health.EjectionRules
	// WatchInterval is how often the firewalls of the host and vipd's files are looked at. Default a minute.
	WatchInterval time.Duration
}

// Daemon is one running vipd.
type Daemon struct {
	Options
	config config.Config
	// mistake is why vipd starts with the last good configuration instead of the file; nil means that it does not.
	mistake error
	// misled reports whether the file could not be used since then.
	misled atomic.Bool
	lock   *os.File
	opened []io.Closer // what closeFiles closes, the last first
	spare  descriptors
	// filesLost: the last look did not find vipd's files; it belongs to the watch.
	filesLost bool
	host      *host.Host
	// namespace is the lock of the network namespace, nil if none is needed.
	namespace  *netlock.Lock
	modeSwitch *modeswitch.Switch
	counters   traffic.Counters // of what all modes have counted
	engine     *dataplane.Engine
	source     store.Source
	files      *tomlfile.Source // the part of source that follows files
	fleet      *fleet.Member    // nil means the store is not a fleet's
	// reserved is nil where the store is not a fleet's.
	reserved *reserved.Follower
	checks   *checks.Checks
	outliers *outlier.Detector
	// unanswered watches which endpoints leave connections without an answer.
	unanswered *unanswered.Watch
	watch      *hostwatch.Watch
	// duplicates finds VIPs that another host has.
	duplicates *duplicates.Watch
	tracing    *tracing.Tracer // nil means turned off
	access     *accesslog.Log
	failover   *failover.Reporter // nil means this host owns no VIPs
	// configuration is config as it is now, of which some can change while running.
	configuration *liveconfig.Config
	stateDir      *statedir.Dir
	model         *model.Model
	transitions   *transitions.Tracker
	views         status.Sources
	events        *events.History // what begins or ends is recorded here, which logs it too
	metrics       *metrics.Metrics
	socket        net.Listener // nil means the system has no Unix sockets
	web           net.Listener // nil means that it is turned off, or could not be opened for the reason webError
	webError      error
	started       time.Time
	reloaded      reloaded
	notify        notifier
	// inherited is what the process before this one has handed over; heir is the one that takes this one's place, by replacing.
	inherited []handover.Item
	heir      *handover.Queue
	replacing *net.UnixListener
}

// New reads the configuration, tries the modes and opens the sockets. It starts nothing and changes nothing in the
// kernel but for the trials. Close what it returns by running it.
func New(o Options) (*Daemon, error) {
	c, mistake, err := StartConfig(o.ConfigFile, o.AllowEmpty)
	if err != nil {
		return nil, err
	}
	// state_dir may be on a disk that hangs: openStateDir checks it with a limit of time.
	for _, refused := range folder.Refused(c.RunDir, "", c.API.Socket) {
		return nil, configError{fmt.Errorf("%s: %w", refused.Field, refused.Err)}
	}
	c.Mode = cmp.Or(o.Mode, c.Mode)
	if c.Node == "" {
		if c.Node, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("finding the host's name (or set node in %s): %w", o.ConfigFile, err)
		}
	}
	d := &Daemon{Options: o, config: c, mistake: mistake, started: time.Now(), events: events.New(events.Options{Log: o.Log})}
	d.misled.Store(mistake != nil)
	if d.spare, err = spareDescriptors(); err != nil {
		return nil, err
	}
	d.opened = append(d.opened, d.spare)
	opened := false
	defer func() {
		if !opened {
			d.closeFiles()
		}
	}()
	if err := d.takeOver(); err != nil {
		return nil, err
	}
	if err := d.claimNamespace(); err != nil {
		return nil, err
	}
	if err := d.openFiles(); err != nil {
		return nil, err
	}
	if err := d.build(); err != nil {
		return nil, err
	}
	opened = true
	return d, nil
}

// listenWeb opens api.http. A port that another program has is a problem of the status, because services don't need it.
func (d *Daemon) listenWeb() (err error) {
	if d.config.API.HTTP == "" {
		return nil
	}
	d.web, err = net.Listen("tcp", d.config.API.HTTP)
	switch {
	case sockerr.Is(err, syscall.EADDRINUSE):
		d.webError = err
		d.Log.Error("metrics and health are not served", "field", "api.http", "err", err)
		return nil
	case err != nil:
		return fmt.Errorf("opening api.http, for metrics and health (set another address, or \"\" to turn it off): %w", err)
	}
	d.opened = append(d.opened, d.web)
	return nil
}

// webProblems reports that api.http could not be opened.
func (d *Daemon) webProblems() []balancer.Problem {
	if d.webError == nil {
		return web.Exposure(d.Web(), d.ConfigFile)
	}
	return []balancer.Problem{{
		Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: d.ConfigFile}, Field: "api.http",
		Text: fmt.Sprintf("metrics, health and the status page are not served: %v; end the other program or set another address, then restart vipd", d.webError),
	}}
}

// openFiles takes the lock and opens the sockets.
func (d *Daemon) openFiles() (err error) {
	if err := folder.Make(d.config.RunDir, makeFolder); err != nil {
		return folderError(err)
	}
	d.lock, err = lockfile.Take(lockfile.Path(d.config.RunDir))
	if errors.Is(err, lockfile.ErrHeld) {
		return fmt.Errorf("%w: stop it, or take its place with --replace; or give this one another run_dir", err)
	}
	if err != nil {
		return err
	}
	d.opened = append(d.opened, d.lock)
	if err := lockfile.Note(d.lock, ""); err != nil {
		return err
	}
	if d.replacing, err = listenHandover(d.handoverPath()); err != nil {
		return err
	}
	if err := d.listenWeb(); err != nil {
		return err
	}
	d.socket, err = listenSocket(d.config.API.Socket, d.Log)
	if err == nil {
		d.opened = append(d.opened, d.socket)
	} else if lacksUnixSockets(err) {
		d.Log.Warn("vipctl can't reach this vipd: Windows has Unix sockets from Windows 10 1803 and Server 2019 on", "err", err)
		return nil
	}
	return err
}

func folderError(err error) error {
	return fmt.Errorf("making vipd's folder (set run_dir and state_dir to folders that this user may write): %w", err)
}

func (d *Daemon) closeFiles() {
	if d.host != nil {
		if err := d.host.Close(); err != nil {
			d.Log.Warn("closing the host's sockets", "err", err)
		}
	}
	var late []net.Conn // from those that asked when this vipd was stopping already: they start as soon as they see the end
	if d.replacing != nil {
		_ = os.Remove(d.handoverPath()) // while the lock is held: the next vipd's has the same name
		if d.heir == nil {
			_ = d.replacing.SetDeadline(time.Now().Add(lateTime)) // fails only where it is closed already
			for c, err := d.replacing.Accept(); err == nil; c, err = d.replacing.Accept() {
				late = append(late, c)
			}
		}
		_ = d.replacing.Close()
	}
	for _, c := range slices.Backward(d.opened) {
		_ = c.Close() // a listener was closed by its server
	}
	for _, item := range d.inherited { // New has failed
		item.Close()
	}
	if d.heir != nil { // last: it takes what was closed above as soon as it sees the end
		_ = d.heir.Close()
	}
	for _, c := range late {
		_ = c.Close()
	}
}

// lateTime is for accepting what waits already.
const lateTime = 20 * time.Millisecond

// Web returns the address of metrics and health; nil means turned off.
func (d *Daemon) Web() net.Addr {
	if d.web == nil {
		return nil
	}
	return d.web.Addr()
}

// Run serves until ctx ends or a part can't go on. Then it hands the traffic over as the mode does that: userspace
// stops accepting, drains and takes its redirects and addresses back; kernel modes leave theirs. It is called once.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.closeFiles()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.Log.Info("vipd starts", "version", d.Version, "node", d.config.Node)
	if d.mistake != nil {
		d.Log.Error("starting with the last good configuration", "file", d.ConfigFile, "err", d.mistake)
	}
	written := d.startWriting()
	first := d.modeSwitch.Serving()
	d.events.Record(events.Event{Kind: events.Mode, Text: string(first.Name) + " mode serves", Cause: "vipd has started; " + first.Reason})
	var running sync.WaitGroup
	for name, run := range d.parts() {
		running.Go(func() {
			if err := run(ctx); err != nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	<-ctx.Done()
	d.notify.stopping()
	running.Wait()
	if err := d.stateDir.Close(); err != nil { // the dataplane serves on meanwhile
		d.Log.Error("stopping all the same", "err", err)
	}
	err := d.handOver()
	if d.engine.Status().Ready { // else nothing was counted yet
		d.counters.Last()
	}
	written()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, errReplaced) {
		err = errors.Join(cause, err)
	}
	d.Log.Info("vipd has stopped")
	return err
}

// startWriting starts what writes down what the parts tell. They have something to tell until they end, so that it ends last: when
// written is called, which returns once all is written.
func (d *Daemon) startWriting() (written func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { d.events.Run(ctx) })
	if d.tracing != nil {
		writing.Go(func() { d.tracing.Run(ctx) })
	}
	writing.Go(func() { d.access.Run(ctx) })
	return func() { cancel(); writing.Wait() }
}

// parts are what runs side by side until the daemon ends. The error of one that can't go on ends all of them.
func (d *Daemon) parts() map[string]func(context.Context) error {
	all := map[string]func(context.Context) error{
		"model":             d.model.Run,
		"store":             func(ctx context.Context) error { return d.source.Watch(ctx, d.publish) },
		"fleet":             func(ctx context.Context) error { return d.fleet.Run(ctx, d.views.Look) },
		"health":            d.checks.Run,
		"fleet's checks":    d.checks.Fleet.Run,
		"outlier detection": d.outliers.Run,
		"unanswered":        d.unanswered.Run,
		"host":              func(ctx context.Context) error { return d.watch.Run(ctx, d.examined, d.fileProblems) },
		"owned VIPs":        func(ctx context.Context) error { return d.failover.Run(ctx, d.serving) },
		"engine":            d.engine.Run,
		"mode":              d.modeSwitch.Run,
		"addresses":         func(ctx context.Context) error { return d.host.FollowAddresses(ctx, d.model.AddressesChanged) },
		"leftovers":         d.modeSwitch.RemoveLeftovers,
		"duplicates":        d.duplicates.Run,
		"leaving VIPs":      func(ctx context.Context) error { return leaving.Run(ctx, d.leavingVIPs()) },
		"notify":            d.notifyLoop,
		"events":            d.transitions.Follow,
		"hooks": func(ctx context.Context) error {
			c := &d.config.Hooks
			return hooks.Run(ctx, hooks.Options{Commands: c.Commands(), User: c.User, Node: d.config.Node, Events: d.events, Log: d.component("hooks")})
		},
	}
	if d.socket != nil {
		all["API"] = func(ctx context.Context) error {
			return httpserve.Serve(ctx, d.socket, httpserve.LimitFollowers(d.api(), httpserve.Default()), httpserve.Default())
		}
	}
	if d.web != nil {
		all["metrics"] = func(ctx context.Context) error { return httpserve.Serve(ctx, d.web, d.webHandler(), web.Bounds()) }
	}
	if d.namespace != nil {
		all["network namespace"] = d.namespace.Run
	}
	if d.replacing != nil {
		all["handover"] = d.awaitSuccessor
	}
	if d.reserved != nil {
		all["reserved addresses"] = func(ctx context.Context) error { return d.reserved.Run(ctx, d.model.Kick) }
	}
	return all
}

// publish takes a snapshot of the store.
func (d *Daemon) publish(s store.Snapshot) {
	d.metrics.StorePublished()
	if d.configuration.Follow(s.Settings) && d.fleet != nil {
		d.fleet.Source().SetDefaults(d.configuration.Current().Defaults)
	}
	if d.misled.Load() && d.usable(&s) {
		d.misled.Store(false)
	}
	d.reloaded.start(s.Services)
	d.model.Publish(s)
}
