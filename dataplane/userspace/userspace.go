package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/dnat"
)

// Interception is how connections to a VIP reach the proxy.
type Interception string

// The interceptions.
const (
	// Auto is Redirect where netfilter can do it, else Bind.
	Auto Interception = "auto"
	// Redirect has netfilter send traffic for VIPs to ports of the proxy. Linux only.
	Redirect Interception = "redirect"
	// Bind listens on VIP:port itself. The addresses must be local.
	Bind Interception = "bind"
)

// Rest is how long a backend that failed to take a connection is no one's first choice. After it, one new connection
// tries it, and the others only once that one got through: a backend that swallows packets costs one client a second
// one connect timeout, not every n-th client. Those that no other backend can take try it all the same.
const Rest = time.Second

// Options are what New needs.
type Options struct {
	Log *slog.Logger
	// Intercept is how connections reach the proxy. Default Auto.
	Intercept Interception
	// maxDescriptors bounds the file descriptors of connections, flows and listeners. Default: what the process may
	// open, less a reserve for everything else.
	maxDescriptors int
	// maxFlows bounds the UDP flows of all frontends together; at the bound, the oldest one of the frontend with the most
	// makes room. Default 65536, and never more than half of maxDescriptors, or of net.ipv4.ip_local_port_range.
	maxFlows int
}

// Dataplane carries frontends out by proxying. See the package's documentation.
type Dataplane struct {
	log     *slog.Logger
	own     *ownAddresses
	budget  *budget
	ports   shortage // of local ports for connections to backends
	flows   *flowBudget
	pipes   *pipes
	chains  chains
	tables  interception
	carried *dnat.Carried
	filters bool // sockets can be filtered
	detail  string
	// epoch is what instants are counted from.
	epoch   time.Time
	retries atomic.Uint64
	// told, unless nil, gets the result of each dial; set before the first Apply.
	told      func(balancer.Target, error)
	followers followers
	// inherited is what the process before this one has handed over and no frontend has taken yet; applying guards it.
	inherited inheritance
	// inheriting: not everything that is wanted has been applied since Inherit.
	inheriting atomic.Bool
	// heir is where connections are handed over to; nil means that they are not.
	heir   *heir
	warned atomic.Int64 // the instant of the last of the warnings that are given seldom

	ctx    context.Context // ends when Close gives up waiting
	cancel context.CancelFunc
	tasks  sync.WaitGroup // accept loops, connections, flows, the janitor
	conns  sync.WaitGroup // connections only: what Close drains

	gate     sync.RWMutex // guards shutting
	shutting bool         // no connection is begun any more: conns only counts down

	// accepts end what other modes know of the sockets that redirects lead to; guarded by applying.
	accepts []func()

	// applying is held by what the engine calls, one at a time and for as long as it takes; taken before mu.
	applying sync.Mutex

	mu        sync.Mutex // guards what follows, for moments only; taken before a frontend's
	frontends map[balancer.Key]*frontend
	timed     map[*frontend]struct{} // those that the janitor looks at
	lost      map[balancer.Key]bool  // UDP frontends to whose sockets conntrack may lead flows, though they are closed
	counters  map[counters.Port]*counter
	running   bool // the janitor runs
	closed    bool
	yielded   bool // another dataplane has the new connections
}

// HandsOver is implemented on Linux only.
var (
	_ dataplane.Dataplane          = (*Dataplane)(nil)
	_ dataplane.Yields             = (*Dataplane)(nil)
	_ dataplane.ReportsDials       = (*Dataplane)(nil)
	_ dataplane.ListsConnections   = (*Dataplane)(nil)
	_ dataplane.EndsConnections    = (*Dataplane)(nil)
	_ dataplane.FollowsConnections = (*Dataplane)(nil)
	_ dataplane.Explains           = (*Dataplane)(nil)
)

// New returns a dataplane that serves nothing yet. Goroutines start with the first Apply and end with Close.
func New(o Options) (*Dataplane, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	d := &Dataplane{
		log:       o.Log,
		own:       &ownAddresses{},
		filters:   canFilter(),
		epoch:     time.Now(),
		frontends: map[balancer.Key]*frontend{},
		timed:     map[*frontend]struct{}{},
		counters:  map[counters.Port]*counter{},
		chains:    chains{frontends: map[balancer.Key]*frontend{}},
	}
	d.budget = newBudget(o.maxDescriptors)
	d.pipes = newPipes(d.budget)
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

// Traits implements dataplane.Dataplane. The detail is how connections are intercepted and, where that was chosen, why.
func (d *Dataplane) Traits() dataplane.Traits {
	translates, all := d.tables.translates()
	return dataplane.Traits{Needs: dataplane.Needs{Translates: translates, TranslatesAll: all}, Detail: d.detail, Lacks: d.lacks(), Drains: true}
}

// ReportDials implements dataplane.ReportsDials. For UDP, an answer or a trial without a refusal is a success, and a
// refused datagram is a failure.
func (d *Dataplane) ReportDials(report func(balancer.Target, error)) { d.told = report }

// DialRetries implements dataplane.ReportsDials.
func (d *Dataplane) DialRetries() uint64 { return d.retries.Load() }

// Capabilities says what userspace mode can honour here. Without the right to filter sockets, it can't leave clients
// without an answer.
func (d *Dataplane) Capabilities() balancer.Capabilities {
	c := Capabilities()
	c.DropsClients = d.filters
	return c
}

// Capabilities says what userspace mode can honour where it has the privileges, for those that have no Dataplane.
func Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:            "userspace",
		EnforcesSources: true,
		Protocols:       []balancer.Protocol{balancer.TCP, balancer.UDP},
		Forwards:        []balancer.Forward{balancer.NATForward},
		ProxyProtocol:   true,
		Timeouts:        true,
		MaxConnections:  true,
		DropsClients:    dropsClients,
		LoopbackVIPs:    true,
	}
}

// Digest covers every field.
func (d *Dataplane) Digest(f *balancer.Frontend) dataplane.Digest { return dataplane.DigestOf(f) }

// now is the instant of the dataplane's monotonic clock that times of rest and idleness are told in.
func (d *Dataplane) now() int64 { return int64(time.Since(d.epoch)) }

var errClosed = errors.New("the userspace dataplane is closed")

// Yield implements dataplane.Yields: it removes the redirects, accepts what was on its way, and lets go of its ports:
// another dataplane of this kind may be the next to have them.
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

// underWay is how long connections that were on their way when this dataplane stepped aside may take to be accepted.
const underWay = 2 * time.Second

// Close stops accepting, waits for established connections, those of each frontend for its DrainTimeout and all until ctx
// ends, and resets those that are left. UDP flows end at once. Meanwhile new clients meet what they do while no backend is active, and never another program on the port.
// Nothing forwards without this process, so that keep makes no difference. It returns when no goroutine and no
// descriptor is left.
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
		d.log.Info("connections that were left have been reset", "connections", left)
	}
	d.cancel()
	d.tasks.Wait()
	for _, ended := range d.accepts {
		ended()
	}
	d.pipes.close()
	err = errors.Join(err, d.tables.close(ctx))
	for _, f := range frontends {
		f.letGo()
	}
	if err != nil {
		return fmt.Errorf("closing the userspace dataplane: %w", err)
	}
	return nil
}

// end marks the dataplane as closed, and reports whether it was not.
func (d *Dataplane) end() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.closed
	d.closed = true
	return !was
}

// refuseNew lets no connection begin any more.
func (d *Dataplane) refuseNew() {
	d.gate.Lock()
	defer d.gate.Unlock()
	d.shutting = true
}

// drain waits until all connections have ended, those of each frontend for its DrainTimeout and all until ctx ends. It resets
// those that are left at the end of ctx, and returns how many these were.
func (d *Dataplane) drain(ctx context.Context, frontends []*frontend) (left int) {
	for _, f := range frontends { // each drains for its own time, within that of the whole
		cut := time.AfterFunc(f.conf.Load().DrainTimeout, func() { f.end() })
		defer cut.Stop()
	}
	drained := make(chan struct{})
	go func() { // ends below: the connections that are left are reset
		d.conns.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-ctx.Done():
		for _, f := range frontends { // also connections that are about to enter
			left += f.end()
		}
	}
	<-drained
	return left
}
