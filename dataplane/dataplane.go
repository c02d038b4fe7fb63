package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane/handover"
)

// Dataplane applies frontends, and nothing else. The methods down to Close are called by one goroutine at a time, the
// others at any time, and Base has those. A wrapper embeds a Dataplane, and so passes on all that it does not change.
type Dataplane interface {
	// Capabilities says what this dataplane can honour here. It does not change during its life.
	Capabilities() balancer.Capabilities
	// Digest is a hash of what f comes to in this dataplane: frontends with equal digests need no Apply between them.
	Digest(f *balancer.Frontend) Digest
	// Observe reads what of ours is there, also an earlier process's. It is the full comparison: its cost may grow with the
	// number of frontends.
	Observe(ctx context.Context) (Observation, error)
	// Intact is a cheap look whether all of ours is still there; the reason says what is missing. Asked every second.
	Intact(ctx context.Context) (reason string, err error)
	// Apply makes each key what its change says. It is idempotent: making a key what it is already, and removing an
	// absent one, succeed. An error of type KeyErrors names the keys that failed, and says that all others are done;
	// after any other error nothing is known, and the engine tries smaller batches.
	Apply(ctx context.Context, batch []Change) error
	// Close ends the dataplane. With keep, what forwards traffic without this process stays in the kernel; otherwise
	// everything goes. It drains what it has to until ctx ends, which ends no removal. Counters stay readable.
	Close(ctx context.Context, keep bool) error

	// Traits says what the dataplane needs of the host, and how it does here.
	Traits() Traits
	// Yield takes away what leads new connections here, as another dataplane has taken over behind which this one would
	// stand in the kernel, and may drain until ctx ends. Connections that are established, or on their way, go on until
	// Close, which comes next.
	Yield(ctx context.Context) error
	// HandOver ends the dataplane and sends what it serves to the process that takes its place: open sockets, established
	// connections, and what it holds of their bytes. What leads new connections here stays. It drains what can't be handed
	// over until ctx ends. Only dataplanes that forward traffic themselves can do it.
	HandOver(ctx context.Context, to *handover.Queue) error
	// Inherit, which comes before the first Apply, takes what the process before this one has handed over.
	Inherit(items []handover.Item)
	// Connections calls visit for each live connection that q names, as it is found: nothing is collected, and visit may be
	// slow. What visit returns ends it, and is returned. The connection is visit's until it returns.
	Connections(ctx context.Context, q ConnectionQuery, visit func(*Connection) error) error
	// Kill ends the connections that q names, and returns how many there were. What fails leaves some of them ended.
	Kill(ctx context.Context, q ConnectionQuery) (int, error)
	// Follow calls tell for each connection that begins or ends, until ctx does; then it returns nil. One that no backend takes only
	// ends. The connection is tell's until it returns. Where tell is too slow for what comes, some are missed, and lost is called
	// with how many ends: 1 where that is not known, and 0 where only begins were missed.
	Follow(ctx context.Context, tell func(began bool, c *Connection), lost func(ends uint64)) error
	// Explain reports how this dataplane chooses the backend of a new connection of client to f, which is applied, as the
	// objects in the kernel say it.
	Explain(ctx context.Context, f *balancer.Frontend, client netip.Addr) (Explanation, error)
	// Counters never go back while the dataplane lives, not even when a frontend is removed and comes back.
	Counters() []FrontendCount
	// DialRetries counts attempts to reach a backend that went on to another one; false: the kernel connects, and no failures of
	// connects are counted.
	DialRetries() (n uint64, counted bool)
	// TellDials, which comes before the first Apply, has a dataplane that connects to backends itself call tell with the
	// error of each connect that fails, and with nil for the first that succeeds after one that failed. Tell is called by
	// many goroutines, and must not block.
	TellDials(tell func(balancer.Target, error))
	// Suspect calls tell, until ctx ends, for new connections of the kernel's to backends that do not answer, and counts them
	// as failures of these; then it returns nil. If refusals is set, tell is also called for connections that are refused,
	// which costs the kernel more. An error says why the kernel reports nothing; Suspect may be called again then. Tell is
	// called by one goroutine at a time, and must not block.
	Suspect(ctx context.Context, refusals bool, tell func(Suspicion)) error
}

// Suspicion is a new connection that a backend has refused, or not answered. It is a hint: the backend may answer others.
type Suspicion struct {
	Target balancer.Target
	Client netip.Addr
	// Counted reports whether the connection had no answer for some seconds and was counted (BackendCount.Failures).
	Counted bool
}

// Traits are what a dataplane is like here. They may change with what is applied.
type Traits struct {
	Needs
	// Detail says in one line how it does what it does here, and what is missing.
	Detail string
	// Lacks says what clients miss just now for want of something on the host; "" means nothing.
	Lacks string
	// Drains: Yield waits for connections to end.
	Drains bool
}

// Base is embedded by dataplanes: its methods are what one does that has nothing to do there.
type Base struct{}

func (Base) Traits() Traits              { return Traits{} }
func (Base) Yield(context.Context) error { return nil }
func (Base) HandOver(context.Context, *handover.Queue) error {
	return handover.ErrUnsupported
}
func (Base) Inherit(items []handover.Item) {
	for _, i := range items {
		i.Close()
	}
}
func (Base) Connections(context.Context, ConnectionQuery, func(*Connection) error) error {
	return nil
}
func (Base) Kill(context.Context, ConnectionQuery) (int, error) { return 0, nil }
func (Base) Follow(ctx context.Context, _ func(bool, *Connection), _ func(uint64)) error {
	<-ctx.Done()
	return nil
}
func (Base) Explain(context.Context, *balancer.Frontend, netip.Addr) (Explanation, error) {
	return Explanation{}, nil
}
func (Base) Counters() []FrontendCount              { return nil }
func (Base) DialRetries() (n uint64, counted bool)  { return 0, false }
func (Base) TellDials(func(balancer.Target, error)) {}
func (Base) Suspect(ctx context.Context, _ bool, _ func(Suspicion)) error {
	<-ctx.Done()
	return nil
}

// Digest is a hash of the form that a frontend takes in a dataplane. 0 is no frontend's digest.
type Digest uint64

// Change asks for one key to become what New says.
type Change struct {
	Key balancer.Key
	// Old is what the engine believes to be there. It is a hint only; nil means nothing or unknown.
	Old *balancer.Frontend
	// New is what is wanted; nil means the key shall be gone.
	New *balancer.Frontend
}

// Observation is what Observe found.
type Observation struct {
	// Digests of the frontends that are there as some Apply left them. A frontend that is there but damaged has
	// digest 0.
	Digests map[balancer.Key]Digest
	// Damage lists, in words, what is missing or broken of what all frontends share; Observe leaves the mending to the
	// next Apply, which the engine makes for every frontend when there is damage.
	Damage []string
	// Untold asks for an Apply of every frontend, also of those that are there as wanted: the dataplane has to be told
	// what an earlier process made it apply.
	Untold bool
}

// KeyErrors is Apply's error when each key's own outcome is known.
type KeyErrors map[balancer.Key]error

// Error lists the keys that failed.
func (e KeyErrors) Error() string {
	var b strings.Builder
	for k, err := range e {
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %v", k, err)
	}
	return b.String()
}

// Err returns e as the error of Apply: nil where no key failed.
func (e KeyErrors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// Host is what the engine keeps in order around a dataplane: addresses, the guard and sysctls. They belong to the
// engine because they outlive the mode.
type Host interface {
	// Prepare makes what frontends need before they are applied: addresses, and the guard's shared parts. It takes the
	// whole wanted state, may be called with the same one again, and does work for what changed.
	Prepare(ctx context.Context, want balancer.Desired) error
	// Finish opens what was applied (the guard's entries), and removes what no applied frontend needs any more.
	Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error
	// Intact is the cheap look of Dataplane.Intact, for the host's parts.
	Intact(ctx context.Context) (reason string, err error)
	// Resync forgets which of the guard's rules and sets are believed to be there, and with addresses which addresses and routes
	// are, so that the next Prepare and Finish compare these in full.
	Resync(addresses bool)
	// Problems are what this host can't do of what is wanted.
	Problems() []balancer.Problem
	// Mended lists what others had changed and a look has mended since Mended was last asked: what was found of each.
	Mended() []string
	// Alerts calls tell, which must not block, when there is a reason to look at once whether everything is still there,
	// until ctx ends. What we change ourselves may be a reason too.
	Alerts(ctx context.Context, tell func())
	// Ready says why c can't be applied yet, as what restricts its clients is not in force; nil means it can. The engine asks
	// between Prepare and Apply, of each key that it is about to apply and does not remove, and asks again in every round
	// while the answer is an error: that key stays what it is, and all others go on. Where a restriction can never be had
	// on a host, that is a matter for Problems, too. enforced: the dataplane restricts clients by itself, so that it waits
	// only for what can be had (Capabilities.EnforcesSources).
	Ready(c Change, enforced bool) error
}

// FrontendCount is what was counted at one frontend.
type FrontendCount struct {
	Service balancer.Name
	Port    string
	// Connections were accepted and given to a backend or refused; In and Out are bytes from and to clients.
	Connections, In, Out uint64
	// Failures are connects to backends that failed; if the kernel connects, new connections of TCP and SCTP without an answer.
	Failures uint64
	// KeptIn and KeptOut are of these bytes: see BackendCount.Kept. Tracked: they are of conntrack's flows, which any mode that reads
	// conntrack counts again.
	KeptIn, KeptOut uint64
	Tracked         bool
	// BytesOnly: the kernel's counters of connections could not be read yet.
	BytesOnly bool
	Backends  []BackendCount
}

// BackendCount is what was counted at one backend of a frontend.
type BackendCount struct {
	Backend netip.AddrPort
	// Active are live ones, without UDP flows that are idle. Failures are connects that failed, as of the frontend.
	Connections, Active, Failures uint64
	// Tracked: the live ones are conntrack's flows, which any mode that reads conntrack counts as well.
	Tracked bool
	// Kept is what the kernel has of it: the next process, which goes on with what is in the kernel, counts it again.
	Kept uint64
}
