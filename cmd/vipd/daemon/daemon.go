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
	"time"

	"vipd/balancer/health"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/lockfile"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/netlock"
	"vipd/cmd/internal/reserved"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/vipd/daemon/internal/accesslog"
	"vipd/cmd/vipd/daemon/internal/agents"
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
	"vipd/cmd/vipd/daemon/internal/names"
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

// Options configures a Daemon.
type Options struct {
	// ConfigFile is the path of vipd.toml.
	ConfigFile string
	// Mode overrides the configuration's mode, unless it is "".
	Mode config.ModeName
	// AllowEmpty permits an empty configuration, which removes a previous vipd's services.
	// Otherwise New rejects such a configuration.
	AllowEmpty bool
	Log        *slog.Logger
	// Replace makes this vipd replace the running vipd of the same run_dir. It takes over that
	// vipd's sockets and connections.
	Replace bool
	// Hurry is a context. When it is done, Run stops waiting for connections to finish. If nil, Run
	// waits until its time limits expire.
	Hurry context.Context
	// Version is the version that status and metrics show.
	Version string
	// Modes lists the modes of this program, best first.
	Modes []modes.Mode
	// Ejection determines when failed connects eject an endpoint. The default is
	// health.DefaultEjectionRules.
	Ejection health.EjectionRules
	// WatchInterval is the interval at which the host's firewalls and vipd's files are checked. The
	// default is a minute.
	WatchInterval time.Duration
}

// Daemon is a running vipd.
type Daemon struct {
	Options
	config config.Config
	// mistake is the reason why vipd uses the last valid configuration, or nil if it uses the file.
	mistake error
	// fileUnusable reports whether the file has been unusable ever since vipd started.
	fileUnusable atomic.Bool
	lock         *os.File
	opened       []io.Closer // files and locks, which closeFiles closes in reverse order
	spare        descriptors
	// filesLost reports whether vipd's files were missing when last checked. Only the goroutine
	// that runs watch uses this field.
	filesLost bool
	host      *host.Host
	// namespace is the lock on the network namespace. It is nil if no lock is needed.
	namespace  *netlock.Lock
	modeSwitch *modeswitch.Switch
	counters   traffic.Counters // counts of all modes together
	engine     *dataplane.Engine
	source     store.Source
	files      *tomlfile.Source // the part of source that follows files
	fleet      *fleet.Member    // nil if the store does not belong to a fleet
	// reserved is nil if the store does not belong to a fleet.
	reserved *reserved.Follower
	checks   *checks.Checks
	agents   *agents.Agents
	names    *names.Names
	outliers *outlier.Detector
	// unanswered finds endpoints that don't answer connections.
	unanswered *unanswered.Watch
	watch      *hostwatch.Watch
	// duplicates finds VIPs that another host also has.
	duplicates *duplicates.Watch
	tracing    *tracing.Tracer // nil if tracing is off
	access     *accesslog.Log
	failover   *failover.Reporter // nil if this host owns no VIPs
	// configuration is the current configuration; some settings can change at run time.
	configuration *liveconfig.Config
	stateDir      *statedir.Dir
	model         *model.Model
	transitions   *transitions.Tracker
	views         status.Sources
	events        *events.History // records and logs events
	metrics       *metrics.Metrics
	socket        net.Listener  // nil if the system has no Unix sockets
	web           *web.Listener // nil if api.http is off
	started       time.Time
	reloaded      reloaded
	notify        notifier
	// inherited is the state that the previous process handed over. successorQueue leads to the
	// process that replaces this process.
	inherited      []handover.Item
	successorQueue *handover.Queue
	replacing      *net.UnixListener
}

// New reads the configuration, tries the modes and opens the sockets. It does not start goroutines.
// It changes kernel state only while it tries modes. The caller must call [Daemon.Run], which also
// releases everything that New acquired.
func New(o Options) (*Daemon, error) {
	c, mistake, err := StartConfig(o.ConfigFile, o.AllowEmpty)
	if err != nil {
		return nil, err
	}
	// state_dir is not checked here, because its disk may hang. openStateDir checks it with a time
	// limit.
	for _, refused := range folder.Refused(c.RunDir, "", c.API.Socket) {
		return nil, configError{fmt.Errorf("%s: %w", refused.Field, refused.Err)}
	}
	c.Mode = cmp.Or(o.Mode, c.Mode)
	if c.Node == "" {
		if c.Node, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("finding the host's name (setting node in %s avoids this): %w", o.ConfigFile, err)
		}
	}
	d := &Daemon{Options: o, config: c, mistake: mistake, started: time.Now(), events: events.New(events.Options{Log: o.Log})}
	d.fileUnusable.Store(mistake != nil)
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

// openFiles acquires the lock and opens the sockets.
func (d *Daemon) openFiles() (err error) {
	if err := folder.Make(d.config.RunDir, makeFolder); err != nil {
		return folderError(err)
	}
	d.lock, err = lockfile.Acquire(lockfile.Path(d.config.RunDir))
	if errors.Is(err, lockfile.ErrHeld) {
		return fmt.Errorf("%w: stop it, replace it with --replace, or give this vipd another run_dir", err)
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
	if d.web, err = web.Listen(d.config.API.HTTP, d.ConfigFile, d.Log); err != nil {
		return err
	}
	d.opened = append(d.opened, d.web)
	d.socket, err = listenSocket(d.config.API.Socket, d.Log)
	if err == nil {
		d.opened = append(d.opened, d.socket)
	} else if lacksUnixSockets(err) {
		d.Log.Warn("vipctl can't reach this vipd: Unix sockets need at least Windows 10 1803 or Windows Server 2019", "err", err)
		return nil
	}
	return err
}

func folderError(err error) error {
	return fmt.Errorf("creating vipd's folder (set run_dir and state_dir to folders that this user can write to): %w", err)
}

func (d *Daemon) closeFiles() {
	if d.host != nil {
		if err := d.host.Close(); err != nil {
			d.Log.Warn("the host's sockets can't be closed", "err", err)
		}
	}
	var late []net.Conn // connections from vipds that want to replace this vipd
	if d.replacing != nil {
		_ = os.Remove(d.handoverPath()) // must happen before the lock is released
		if d.successorQueue == nil {
			_ = d.replacing.SetDeadline(time.Now().Add(lateTime)) // fails only if the socket is closed
			for c, err := d.replacing.Accept(); err == nil; c, err = d.replacing.Accept() {
				late = append(late, c)
			}
		}
		_ = d.replacing.Close()
	}
	for _, c := range slices.Backward(d.opened) {
		_ = c.Close() // the servers may already have closed their listeners
	}
	for _, item := range d.inherited { // items remain only if New failed
		item.Close()
	}
	if d.successorQueue != nil { // close last: the next process opens these files when the queue is closed
		_ = d.successorQueue.Close()
	}
	for _, c := range late {
		_ = c.Close()
	}
}

// lateTime is the time limit for accepting connections that are already waiting in the kernel.
const lateTime = 20 * time.Millisecond

// Web returns the address of metrics and health, or nil if they are not served.
func (d *Daemon) Web() net.Addr { return d.web.Addr() }

// Run serves until ctx is done or a part fails. Then it hands over the traffic. Userspace mode
// stops accepting connections, drains, and removes its redirects and addresses. Kernel modes leave
// rules and addresses in place. Run may be called only once.
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
	if err := d.stateDir.Close(); err != nil { // the dataplane continues to serve
		d.Log.Error("state_dir was not closed properly; stopping anyway", "err", err)
	}
	err := d.handOver()
	if d.engine.Status().Ready { // a daemon that was never ready has no counts
		d.counters.Last()
	}
	written()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, errReplaced) {
		err = errors.Join(cause, err)
	}
	d.Log.Info("vipd has stopped")
	return err
}

// startWriting starts the writers of events and traces. The returned function stops them, and waits
// until they have written everything. It must be called after the other parts have stopped, because
// they produce entries until then.
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

// parts returns the functions that the daemon runs in goroutines. If one of them fails, all of them
// are stopped.
func (d *Daemon) parts() map[string]func(context.Context) error {
	all := map[string]func(context.Context) error{
		"model":             d.model.Run,
		"store":             func(ctx context.Context) error { return d.source.Watch(ctx, d.publish) },
		"fleet":             func(ctx context.Context) error { return d.fleet.Run(ctx, d.views.Look) },
		"health":            d.checks.Run,
		"agents":            d.agents.Run,
		"names":             d.names.Run,
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
		"metrics":           func(ctx context.Context) error { return d.web.Serve(ctx, d.webHandler(), d.Log) },
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

// publish passes a snapshot of the store to the model.
func (d *Daemon) publish(s store.Snapshot) {
	d.metrics.StorePublished()
	if d.configuration.Follow(s.Settings) && d.fleet != nil {
		d.fleet.Source().SetDefaults(d.configuration.Current().Defaults)
	}
	if d.fileUnusable.Load() && d.usable(&s) {
		d.fileUnusable.Store(false)
	}
	d.reloaded.start(s.Services)
	d.model.Publish(s)
}
