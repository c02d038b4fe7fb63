package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/dnat"
)

// Interception is a method of directing connections to the proxy.
type Interception string

// These are the interceptions.
const (
	// Auto selects Redirect if netfilter supports it, and Bind otherwise.
	Auto Interception = "auto"
	// Redirect makes netfilter send traffic for VIPs to ports of the proxy. It needs Linux.
	Redirect Interception = "redirect"
	// Bind listens on VIP:port. The addresses must be local.
	Bind Interception = "bind"
)

// Rest is how long a failed backend is never the first choice. Afterwards a single new connection
// tries the backend, and other connections follow only if it succeeds. So a backend that drops
// packets delays at most one client per second by the connect timeout. Connections without an
// alternative try the backend anyway.
const Rest = time.Second

// Options are the options of [New].
type Options struct {
	Log *slog.Logger
	// Intercept selects how connections reach the proxy. The default is Auto.
	Intercept Interception
	// Replies maintains the reply paths to sockets with clients' addresses. All dataplanes of a
	// process must share it. By default, the new dataplane has its own.
	Replies *Replies
	// maxDescriptors limits the file descriptors of connections, flows and listeners. The default
	// is the process's limit minus a reserve.
	maxDescriptors int
	// maxFlows limits the UDP flows of all frontends. At the limit, the oldest flow of the frontend
	// with the most flows is ended to make room. The default is 65536, but at most half of
	// maxDescriptors and half of net.ipv4.ip_local_port_range.
	maxFlows int
}

// Dataplane forwards connections by proxying them. See the package documentation.
type Dataplane struct {
	log     *slog.Logger
	own     *ownAddresses
	budget  *budget
	ports   shortage // shortage of local ports for connections to backends
	flows   *flowBudget
	loops   *loops // move the bytes of TCP
	aside   aside
	reads   aside // reads the node's addresses, for which clients wait
	chains  chains
	tables  interception
	carried *dnat.Carried
	replies *Replies
	// keepsReplies reports whether some inherited sockets with clients' addresses are not adopted
	// yet. It is guarded by applying.
	keepsReplies bool
	filters      bool // TCP sockets can be filtered
	detail       string
	// epoch is the origin of instants.
	epoch   time.Time
	retries atomic.Uint64
	// reportDial, if not nil, receives reports about dials. It is set before the first Apply.
	reportDial  func(balancer.Target, error)
	followers   followers
	remembering memoryRegistry
	admitters   admitters
	// inherited holds an earlier process's items that no frontend has adopted yet. It is guarded by
	// applying.
	inherited inheritance
	// inheriting reports whether inherited items wait for frontends that have not been applied yet.
	inheriting atomic.Bool
	// heir is the process that takes over during a handover, and otherwise nil.
	heir   *successor
	warned atomic.Int64 // the instant of the last rate-limited warning

	ctx    context.Context // canceled when Close stops waiting for connections
	cancel context.CancelFunc
	tasks  sync.WaitGroup // flows, read loops and the janitor
	conns  sync.WaitGroup // only connections; drain waits for them

	gate     sync.RWMutex // guards shutting
	shutting bool         // no more connections may start, so conns only decreases

	// accepts holds the functions that dnat.Accepts returned for the ports to which redirects lead.
	// It is guarded by applying.
	accepts []func()

	// applying serializes the engine's calls, which may be slow. It is locked before mu.
	applying sync.Mutex

	mu        sync.Mutex // guards the fields below, only briefly; acquired before a frontend's mu
	frontends map[balancer.Key]*frontend
	timed     map[*frontend]struct{} // the frontends that the janitor checks
	lost      map[balancer.Key]bool  // UDP frontends with closed sockets to which conntrack may still send datagrams
	counters  map[counters.Port]*counter
	running   bool // the loops and the janitor are running
	closed    bool
	yielded   bool // Yield was called, so another dataplane gets the new connections
}

// The interface dataplane.HandsOver is implemented only on Linux.
var (
	_ dataplane.Dataplane          = (*Dataplane)(nil)
	_ dataplane.Yields             = (*Dataplane)(nil)
	_ dataplane.ReportsDials       = (*Dataplane)(nil)
	_ dataplane.ListsConnections   = (*Dataplane)(nil)
	_ dataplane.EndsConnections    = (*Dataplane)(nil)
	_ dataplane.FollowsConnections = (*Dataplane)(nil)
	_ dataplane.Explains           = (*Dataplane)(nil)
	_ dataplane.CountsClients      = (*Dataplane)(nil)
)

// New returns a dataplane that serves nothing yet. The first Apply starts its goroutines, and Close
// stops them.
func New(o Options) (*Dataplane, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	d := &Dataplane{
		log:         o.Log,
		own:         &ownAddresses{},
		filters:     canFilter(),
		replies:     cmp.Or(o.Replies, NewReplies()),
		epoch:       time.Now(),
		frontends:   map[balancer.Key]*frontend{},
		timed:       map[*frontend]struct{}{},
		counters:    map[counters.Port]*counter{},
		remembering: memoryRegistry{all: map[balancer.AffinityMemory]*clientMemory{}},
		chains:      chains{frontends: map[balancer.Key]*frontend{}, ranges: map[netip.Addr][]*frontend{}},
	}
	d.budget = newBudget(o.maxDescriptors)
	d.loops = newLoops(d)
	d.flows = newFlowBudget(o.maxFlows, d.budget.limit, localPorts())
	tables, detail, err := newInterception(o, d)
	if err != nil {
		return nil, err
	}
	d.tables, d.detail = tables, detail
	d.carried = dnat.NewProxied(o.Log, d.own.has)
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// Traits implements [dataplane.Dataplane]. The detail names the interception. If redirects do not
// work, it also gives the reason.
func (d *Dataplane) Traits() dataplane.Traits {
	translates, all := d.tables.translates()
	return dataplane.Traits{Needs: dataplane.Needs{Translates: translates, TranslatesAll: all}, Detail: d.detail, Lacks: d.lacks(), Drains: true}
}

// ReportDials implements [dataplane.ReportsDials]. For UDP, an answer or a trial without a refusal
// is a success. A refused datagram is a failure.
func (d *Dataplane) ReportDials(report func(balancer.Target, error)) { d.reportDial = report }

// DialRetries implements [dataplane.ReportsDials].
func (d *Dataplane) DialRetries() uint64 { return d.retries.Load() }

// Capabilities returns the features that userspace mode supports on this host. Without permission
// to filter sockets, vipd can't silently drop clients' packets. Without redirects, each port of a
// range needs a socket.
func (d *Dataplane) Capabilities() balancer.Capabilities {
	c := Capabilities()
	c.DropsClients = d.filters
	c.ClientSource = hasClientSource && mayUseClients()
	c.MaxPorts = d.tables.maxPorts()
	return c
}

// Capabilities returns the features that userspace mode supports with all privileges.
func Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:            "userspace",
		EnforcesSources: true,
		Protocols:       []balancer.Protocol{balancer.TCP, balancer.UDP},
		Forwards:        []balancer.Forward{balancer.NATForward},
		ProxyProtocol:   true,
		AcceptsProxy:    true,
		ClientSource:    hasClientSource,
		Timeouts:        true,
		MaxConnections:  true,
		DropsClients:    dropsClients,
		MaxPorts:        maxPorts,
		MaxMovedPorts:   balancer.AllPorts.Len(),
		RangeAffinity:   true,
		LoopbackVIPs:    true,
		AffinityScopes:  []balancer.AffinityScope{balancer.ServiceScope, balancer.VIPScope},
		AffinityPrefix:  true,
		ResetsOverLimit: true,
	}
}

// Digest implements [dataplane.Dataplane]. It covers every field.
func (d *Dataplane) Digest(f *balancer.Frontend) dataplane.Digest { return dataplane.DigestOf(f) }

// now returns the current instant of the dataplane's monotonic clock, in nanoseconds since its
// epoch.
func (d *Dataplane) now() int64 { return int64(time.Since(d.epoch)) }

var errClosed = errors.New("the userspace dataplane is closed")

// Yield implements [dataplane.Yields]. It removes the redirects, accepts connections that clients
// have already started, and releases its ports, because another userspace dataplane may need them.
func (d *Dataplane) Yield(ctx context.Context) error {
	d.applying.Lock()
	defer d.applying.Unlock()
	d.yielded = true
	err := errors.Join(d.carried.Close(), d.tables.close(ctx))
	select {
	case <-time.After(underWay):
	case <-ctx.Done():
	}
	return errors.Join(err, d.tables.stop(ctx, d.list()))
}

// underWay is how long this dataplane continues to accept connections after Yield, because clients
// may already have sent a SYN.
const underWay = 2 * time.Second

// Close stops accepting connections, waits for established ones, and resets those that remain. Each
// frontend's connections may continue for its DrainTimeout, but not after ctx is done. UDP flows
// end immediately. New clients are treated as if no backend were active, and never reach another
// program on the port. The bool has no effect, because nothing is forwarded without this process.
// When Close returns, no goroutine and no descriptor is left.
func (d *Dataplane) Close(ctx context.Context, _ bool) error {
	d.discard()
	d.applying.Lock()
	defer d.applying.Unlock()
	if !d.end() {
		return nil
	}
	frontends := d.list()
	err := d.carried.Close()
	if !d.yielded {
		err = errors.Join(err, d.tables.stop(ctx, frontends))
	}
	d.refuseNew()
	if left := d.drain(ctx, frontends); left > 0 {
		d.log.Info("the remaining connections have been reset", "connections", left)
	}
	d.cancel()
	d.tasks.Wait()
	for _, ended := range d.accepts {
		ended()
	}
	d.stopLoops()
	err = errors.Join(err, d.tables.close(ctx), d.replies.release(d))
	for _, f := range frontends {
		f.releaseHeldPorts()
	}
	if err != nil {
		return fmt.Errorf("closing the userspace dataplane: %w", err)
	}
	return nil
}

// stopLoops stops the loops and the goroutines that run calls for them. It must be called after the
// last connection has ended.
func (d *Dataplane) stopLoops() {
	d.loops.halt()
	d.aside.stop()
	d.reads.stop()
	d.loops.close() // also reads the letters that the calls sent
}

func (d *Dataplane) end() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.closed
	d.closed = true
	return !was
}

func (d *Dataplane) refuseNew() {
	d.gate.Lock()
	defer d.gate.Unlock()
	d.shutting = true
}

// drain waits until all connections have ended. It resets connections after the DrainTimeout of
// their frontend, and all remaining connections when ctx is done. It returns the number of
// connections that remained then.
func (d *Dataplane) drain(ctx context.Context, frontends []*frontend) (left int) {
	for _, f := range frontends { // each frontend drains for its own DrainTimeout, at most until ctx is done
		cut := time.AfterFunc(f.conf.Load().DrainTimeout, func() { f.end() })
		defer cut.Stop()
	}
	drained := make(chan struct{})
	go func() { // returns soon, because the remaining connections are reset
		d.conns.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-ctx.Done():
		for _, f := range frontends { // this includes connections that have been accepted but are not listed yet
			left += f.end()
		}
	}
	<-drained
	return left
}
