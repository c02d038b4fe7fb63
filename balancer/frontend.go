package balancer

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/snap"
)

// Frontend is one compiled address, port and protocol with its final backends. A dataplane carries it out as it is.
type Frontend struct {
	Key
	// NodePort marks a frontend on one of the node's own addresses.
	NodePort bool
	// Service and Port are the names of what this was compiled from, for people and counters.
	Service Name
	Port    string
	// Backends are sorted by address; each appears once. Those that get no new connections are among them, so that
	// established ones live on: see Backend.State.
	Backends []Backend
	Policy
	// Affinity keeps a client on its backend for AffinityTimeout after its last new connection; 0 means no affinity.
	AffinityTimeout time.Duration
	// Sources are the networks that may connect besides the node itself; empty: all.
	Sources []netip.Prefix
	// IdleTimeout ends a connection or flow without traffic; 0 means never.
	IdleTimeout time.Duration
	// Roams: connections come from other hosts, which choose the same endpoint for a client as this one. A packet of one that this
	// host does not know is passed on.
	Roams bool
}

// Backend is one endpoint of a frontend.
type Backend struct {
	// Addr is where connections go.
	Addr netip.AddrPort
	// State says whether it gets new connections, and why not.
	State BackendState
	// Weight is the effective weight: at least 1 where State is Active, else 0.
	Weight int
	// Until is when connections that are left are ended; zero means not by time. A time that is past ends them at once: that is
	// how a failing backend's are cut.
	Until time.Time
	// MaxConnections bounds the connections of this node; 0 means no bound.
	MaxConnections int
	// Failing reports whether its health checks fail, also if State gives another reason.
	Failing bool
}

// Dead reports whether clients that open a connection again must not reach b, even if it holds their earlier connection:
// b is removed, fails its checks, or is ejected.
func (b Backend) Dead() bool {
	return b.State == Removed || b.State == Ejected || b.Failing && b.State != Active
}

// Drains reports whether b has been told to drain, or is gone and still has time to.
func (b Backend) Drains() bool { return b.State == Draining || b.State == Removed }

// Over reports whether the time of b's connections has ended.
func (b Backend) Over(now time.Time) bool { return !b.Until.IsZero() && !now.Before(b.Until) }

// On yields the frontends on an address, in the order of their keys.
func On(frontends snap.Map[Key, *Frontend], a netip.Addr) iter.Seq2[Key, *Frontend] {
	return frontends.While(Key{Addr: a}, func(k Key) bool { return k.Addr == a })
}

// Target is the endpoint behind b, which is a backend of f.
func (f *Frontend) Target(b Backend) Target {
	return Target{Service: f.Service, Addr: b.Addr.Addr(), Port: b.Addr.Port()}
}

// BackendState says whether a backend gets new connections and, where not, why.
type BackendState string

// The states. Only Active ones get new connections, but that a mode which sees attempts fail turns to Standby ones, then
// to Ejected ones, while every Active one refuses. Established connections live on in all states, until Until where that is set.
const (
	// Active gets new connections.
	Active BackendState = "active"
	// Standby is a backup endpoint while others are up.
	Standby BackendState = "standby"
	// Remote is left aside by locality.
	Remote BackendState = "remote"
	// ZeroWeight has weight 0.
	ZeroWeight BackendState = "zero-weight"
	// Draining was told to drain, by its definition or by an override.
	Draining BackendState = "draining"
	// Down fails its health checks.
	Down BackendState = "down"
	// Untested waits for the first result of its health check, while others are known to be up.
	Untested BackendState = "untested"
	// Ejected does not take connections, see Inputs.Ejected, while others are left.
	Ejected BackendState = "ejected"
	// Removed is no longer among the service's endpoints; connections have until Until.
	Removed BackendState = "removed"
)

// Backend returns the one at an address; nil means there is none.
func (f *Frontend) Backend(at netip.AddrPort) *Backend {
	i, there := slices.BinarySearchFunc(f.Backends, at, func(b Backend, at netip.AddrPort) int { return b.Addr.Compare(at) })
	if !there {
		return nil
	}
	return &f.Backends[i]
}

// Serves reports whether any backend gets new connections.
func (f *Frontend) Serves() bool {
	return slices.ContainsFunc(f.Backends, func(b Backend) bool { return b.State == Active })
}

// Allows reports whether the source ranges of f have client. The node itself always may connect, which is the caller's to know.
func (f *Frontend) Allows(client netip.Addr) bool {
	client = client.WithZone("")
	return len(f.Sources) == 0 || slices.ContainsFunc(f.Sources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// Equal reports whether two frontends say the same in every field.
func (f *Frontend) Equal(g *Frontend) bool {
	if f == g || f == nil || g == nil {
		return f == g
	}
	return f.scalars() == g.scalars() && slices.Equal(f.Sources, g.Sources) &&
		slices.EqualFunc(f.Backends, g.Backends, Backend.Equal)
}

// scalars are the fields that == compares; a test holds them complete.
type scalars struct {
	key            Key
	nodePort       bool
	service        Name
	port           string
	policy         Policy
	affinity, idle time.Duration
	roams          bool
}

func (f *Frontend) scalars() scalars {
	return scalars{f.Key, f.NodePort, f.Service, f.Port, f.Policy, f.AffinityTimeout, f.IdleTimeout, f.Roams}
}

// Equal reports whether two backends say the same in every field.
func (b Backend) Equal(c Backend) bool {
	return b.Addr == c.Addr && b.State == c.State && b.Weight == c.Weight && b.Until.Equal(c.Until) &&
		b.MaxConnections == c.MaxConnections && b.Failing == c.Failing
}
