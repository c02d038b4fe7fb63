package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/failover"
	"vipd/balancer/failover/local"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/lockfile"
	"vipd/cmd/vipd/owner/cleanup"
	onhost "vipd/dataplane/failover"
	"vipd/store/etcd/client"
)

// Options configures an Owner.
type Options struct {
	Node, Zone, Version string
	Weight              int
	Timing              failover.Timing
	Etcd                client.Config
	// VRRP configures VRRP. If nil, etcd decides which host owns a VIP.
	VRRP *VRRPOptions
	// Interfaces limits the interfaces on which VIPs may be. Listen limits the addresses that
	// receive heartbeats.
	Interfaces []string
	Listen     []netip.Addr
	// Reach lists hosts that must answer on their devices. If empty, the default gateways must
	// answer.
	Reach []netip.Addr
	// AnnounceEvery is the interval at which announcements are repeated. If 0, only changes are
	// announced.
	AnnounceEvery time.Duration
	// Hindered lists reasons why the process may be late.
	Hindered []string
	Log      *slog.Logger
}

// gate returns how long the gate stays open after a refresh.
func (o *Options) gate() time.Duration {
	if o.VRRP != nil {
		return o.VRRP.Gate
	}
	return o.Timing.Gate
}

// Owner is this host's vipd owner. It consists of a core for the VIPs that vipd reports, and of the
// socket that receives the reports.
type Owner struct {
	o            Options
	runDir       string
	wake         wake.Signal
	daemon       daemon
	surroundings networkInfo
	journal      *journal
	core         atomic.Pointer[core]
}

// New returns an owner whose socket is in runDir.
func New(o Options, runDir string) *Owner {
	w := wake.New()
	return &Owner{
		o: o, runDir: runDir, wake: w, daemon: daemon{changed: w}, surroundings: networkInfo{changed: w},
		journal: &journal{log: o.Log, counts: map[local.NoteKind]map[string]int{}},
	}
}

// Run owns the VIPs that vipd reports until ctx is done.
func (o *Owner) Run(ctx context.Context) error {
	lock, err := lockfile.Acquire(filepath.Join(o.runDir, cleanup.LockFile))
	if errors.Is(err, lockfile.ErrHeld) {
		return fmt.Errorf("%w: another vipd owner runs here: stop it", err)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	path := filepath.Join(o.runDir, api.OwnerSocket)
	_ = os.Remove(path) // remove the previous process's socket
	l, err := api.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("opening the owner's socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /vips", o.receive)
	mux.HandleFunc("POST /vips/{vip}/move", o.request((*byVRRP).move))
	mux.HandleFunc("POST /resume", o.request((*byVRRP).resume))
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { o.answer(w, true) })
	s := &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(o.o.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
		ConnState:   o.daemon.closed,
	}
	var serving sync.WaitGroup
	finding, end := context.WithCancel(ctx)
	serving.Go(func() { _ = s.Serve(l) })
	if o.o.VRRP == nil {
		serving.Go(func() { o.surroundings.followEtcdAddr(finding, o.o.Etcd.Endpoints) })
	}
	if len(o.o.Reach) == 0 {
		o.surroundings.findRouters()
		serving.Go(func() { onhost.FollowRouters(finding, o.surroundings.findRouters) })
	}
	err = o.follow(ctx)
	end()
	_ = s.Close()
	serving.Wait()
	return err
}

// connection is the key of the client's connection in a request's context.
type connection struct{}

func (o *Owner) receive(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<20))
	if err == nil {
		from, _ := r.Context().Value(connection{}).(net.Conn)
		err = o.daemon.receive(text, from)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.answer(w, false)
}

// lookEvery is the interval at which the host is checked. hangEvery is the interval at which vipd
// is checked, because it may hang.
const (
	lookEvery = time.Second
	hangEvery = 50 * time.Millisecond
)

// follow runs a core for the VIPs that vipd reports.
func (o *Owner) follow(ctx context.Context) error {
	look, watch := time.NewTicker(lookEvery), time.NewTicker(hangEvery)
	defer look.Stop()
	defer watch.Stop()
	f := &follower{Owner: o, stop: func() {}}
	defer func() { f.stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.historyChanged:
			f.stop()
			f.historyChanged = nil
			f.last = nil
			f.doubt = doubtful
		case <-o.wake:
		case <-look.C:
		case <-watch.C:
			if !o.daemon.hangs() {
				continue
			}
		}
		if report := o.daemon.current(); report != nil {
			if err := f.apply(ctx, report); err != nil {
				return err
			}
		}
	}
}

// follower updates a core when reports or the host change.
type follower struct {
	*Owner
	layout onhost.Layout
	last   *api.OwnerReport
	absent map[netip.Addr]string
	stop   func()
	// historyChanged is closed when etcd no longer continues the same history, for example after a
	// restore. It is nil if no core is running. The next core then doubts etcd's records for the
	// duration doubt.
	historyChanged <-chan struct{}
	doubt          time.Duration
}

// apply passes a report to the running core, or starts a core for it. It returns an error if no
// core can be started.
func (f *follower) apply(ctx context.Context, report *api.OwnerReport) error {
	next, err := f.find(vipsOf(report))
	running := f.historyChanged != nil
	if err == nil && running {
		err = f.core.Load().decider.listen(f.layout, next)
	}
	switch {
	case err != nil && running: // the core continues to serve its current VIPs
		f.core.Load().failed("changes to the host's devices can't be handled", err)
		return nil
	case err != nil:
		return err
	case !running:
		if err := f.begin(ctx, next); err != nil {
			return err
		}
	}
	c := f.core.Load()
	absent := c.worker.absent.reasons()
	if f.last == nil || f.last != report && !reflect.DeepEqual(f.last, report) || !next.Equal(f.layout) || !maps.Equal(absent, f.absent) {
		c.report(report, f.layout, next)
		c.decider.can(blockReasons(report, next.Own, absent))
		f.layout = next
		f.last = report
		f.absent = absent
	}
	return nil
}

// find returns the host's layout for the VIPs vips.
func (f *follower) find(vips []netip.Addr) (onhost.Layout, error) {
	way, reach := f.surroundings.get()
	if len(f.o.Reach) > 0 {
		reach = f.o.Reach
	}
	return f.layout.Next(vips, onhost.LayoutOptions{Interfaces: f.o.Interfaces, Listen: f.o.Listen, Way: way, Reach: reach})
}

// doubtful is how long other hosts may still follow the previous etcd after this host has detected
// that etcd's history changed.
const doubtful = time.Minute

func (f *follower) begin(ctx context.Context, l onhost.Layout) error {
	c, err := newCore(f.o, l, f.doubt, f.journal, f.wake.Send)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	started := make(chan struct{})
	running.Go(func() { c.run(ctx, started) })
	<-started
	f.core.Store(c)
	f.stop, f.historyChanged = func() { cancel(); running.Wait() }, c.another
	return nil
}
