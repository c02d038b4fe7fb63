package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Dataplane carries out frontends, and nothing else. All methods are called by one goroutine at a time, but for those
// of the optional interfaces.
type Dataplane interface {
	// Capabilities says what this dataplane can honour here. It does not change during its life.
	Capabilities() balancer.Capabilities
	// Digest is a hash of what f comes to in this dataplane: frontends with equal digests need no Apply between them.
	Digest(f *balancer.Frontend) Digest
	// Observe reads what of ours is there, whoever put it there. It is the full comparison: its cost may grow with the
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
}

// Digest is a hash of the form that a frontend takes in a dataplane. 0 is no frontend's digest.
type Digest uint64

// Change asks for one key to become what New says.
type Change struct {
	Key balancer.Key
	// Old is what the engine believes to be there. It is a hint only; nil: nothing or unknown.
	Old *balancer.Frontend
	// New is what is wanted; nil: the key shall be gone.
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
	// what an earlier process made it carry out.
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
	// Resync forgets what is believed to be there, so that the next Prepare and Finish compare in full.
	Resync()
	// Problems are what this host can't do of what is wanted.
	Problems() []balancer.Problem
}

// Mender is implemented by hosts that mend some of what others have changed as they look at it. The engine asks after each
// look, and tells of it.
type Mender interface {
	// Mended lists what was mended since it was last asked: what was found of each.
	Mended() []string
}

// Alerter is implemented by hosts that are told when somebody changes what a dataplane or the host has made.
type Alerter interface {
	// Alerts calls tell, which must not block, when there is a reason to look at once whether everything is still there,
	// until ctx ends. What we change ourselves may be a reason too.
	Alerts(ctx context.Context, tell func())
}

// Gate is implemented by hosts on which some frontends must not be served before what restricts them is in force. The
// engine asks between Prepare and Apply, of each key that it is about to apply and does not remove, and asks again in
// every round while the answer is an error: that key stays what it is, and all others go on. Where a restriction can never
// be had on a host, that is a matter for Problems, too.
type Gate interface {
	// Ready says why c can't be applied yet; nil: it can. enforced: the dataplane restricts clients by itself, so that it
	// waits only for what can be had (Capabilities.EnforcesSources). It is cheap, and is called by the engine's goroutine.
	Ready(c Change, enforced bool) error
}

// Yielder is implemented by dataplanes that have to step aside for another one that has taken over: they stand before it
// in the kernel, or take new connections to their end when they are closed.
type Yielder interface {
	// Yield takes away what leads new connections here, and may drain until ctx ends. Connections that are established, or
	// on their way, go on until Close, which comes next.
	Yield(ctx context.Context) error
}

// Dialer is implemented by dataplanes that connect to backends themselves, and see what comes of it.
type Dialer interface {
	// TellDials has tell called with what comes of connects to backends: with the error of each that fails, and with nil for
	// the first that succeeds after one that failed. It is called by many goroutines, and must not block. TellDials comes
	// before the first Apply.
	TellDials(tell func(balancer.Target, error))
}

// Suspecter is implemented by dataplanes whose kernel connects clients to backends, and notes which connections nobody
// answers.
type Suspecter interface {
	// Suspect has tell called with backends that leave a new connection without an answer, or refuse it, until ctx ends;
	// then it returns nil. An error says why the kernel tells nothing; Suspect may be called again then. It is a hint, no
	// more: the same backend may answer others. tell is called by one goroutine, and must not block.
	Suspect(ctx context.Context, tell func(balancer.Target)) error
}

// Connection is one live connection or flow.
type Connection struct {
	Frontend balancer.Key   `json:"frontend"`
	Service  balancer.Name  `json:"service"`
	Client   netip.AddrPort `json:"client"`
	Backend  netip.AddrPort `json:"backend"`
	// State is the mode's own word: connecting, established, half-closed, flow, ...
	State string `json:"state"`
	// Since is when it began; zero where nobody notes that.
	Since time.Time `json:"since,omitzero"`
	// In and Out are bytes from and to the client; 0, and left out, also where nobody counts them.
	In  uint64 `json:"bytes_in,omitzero"`
	Out uint64 `json:"bytes_out,omitzero"`
}

// Connections is implemented by dataplanes that can list live connections. It is safe to call at any time.
type Connections interface {
	Connections(ctx context.Context) ([]Connection, error)
}

// Counters is implemented by dataplanes that count. It is safe to call at any time. Counts never go back while the
// dataplane lives, not even when a frontend is removed and comes back.
type Counters interface {
	Counters() []FrontendCount
}

// FrontendCount is what was counted at one frontend.
type FrontendCount struct {
	Service balancer.Name
	Port    string
	// Connections were accepted and given to a backend or refused; In and Out are bytes from and to clients.
	Connections, In, Out uint64
	Backends             []BackendCount
}

// BackendCount is what was counted at one backend of a frontend.
type BackendCount struct {
	Backend             netip.AddrPort
	Connections, Active uint64
}

// Renderer is implemented by dataplanes whose form can be printed in the kernel's native syntax without privilege.
type Renderer interface {
	Render(frontends []*balancer.Frontend) (string, error)
}
