package balancer

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/snap"
)

// Frontend is one compiled address, port and protocol with its final backends. A dataplane applies
// it without further decisions.
type Frontend struct {
	Key
	// NodePort reports whether the address is one of the node's own addresses.
	NodePort bool
	// Service and Port are the names of the service and its port, for messages and counters.
	Service Name
	Port    string
	// Open lists the sorted parts of a port range that no narrower frontend on the address covers.
	// It is empty for a single port.
	Open []PortRange
	// Backends are sorted by address, without duplicates. They include backends that get no new
	// connections but whose established connections continue (see Backend.State).
	Backends []Backend
	Policy
	// AffinityTimeout is how long a client returns to its backend after its last new connection.
	// Zero means no affinity.
	AffinityTimeout time.Duration
	// AffinityScope determines on which frontends a client gets the same endpoint. The zero value
	// is PortScope.
	AffinityScope AffinityScope
	// AffinityPrefix is the prefix length that groups clients. 0 means the whole address.
	AffinityPrefix int
	// Foreign lists the sorted addresses of foreign endpoints. They belong only to other services
	// on the VIP, which share an affinity memory with this service through VIPScope.
	Foreign []netip.Addr
	// Sources are the networks that may connect, besides the node itself. If empty, all networks
	// may. With AcceptProxyProtocol, they are the trusted networks, which must also contain the
	// node's address if the node itself connects.
	Sources []netip.Prefix
	// Clients are the networks of the clients that PROXY headers may name. If empty, headers may
	// name any client.
	Clients []netip.Prefix
	// IdleTimeout ends a connection or flow without traffic. 0 means never.
	IdleTimeout time.Duration
	// Limits are the limits on clients' connections. The node's own connections are not limited.
	Limits ClientLimits
	// Movable reports whether established connections can move here from another vipd host. All
	// hosts choose the same endpoint for a client, so packets of unknown connections are forwarded.
	Movable bool
	// Withdrawn reports whether this host has given up the VIP because no frontend on the VIP has a
	// usable backend. vipd then ignores packets to the VIP, so routing decides which host gets
	// them.
	Withdrawn bool
}

// Backend is one endpoint of a frontend.
type Backend struct {
	// Addr is the address and port that connections are forwarded to.
	Addr netip.AddrPort
	// State is Active if the backend gets new connections. Otherwise it is the reason why the
	// backend gets none.
	State BackendState
	// Weight is the effective weight: at least 1 if State is Active, and otherwise 0.
	Weight int
	// Until is the deadline for the remaining connections. Zero means no deadline. A deadline in
	// the past ends them immediately, which cuts the connections of a failing backend.
	Until time.Time
	// MaxConnections limits this node's connections to the backend. 0 means no limit.
	MaxConnections int
	// Failing reports whether the backend's health checks fail, even if State has another reason.
	Failing bool
}

// Dead reports whether b is removed, ejected, or fails its checks. A client that reconnects must
// not return to a dead backend, even if it still has connections to b.
func (b Backend) Dead() bool {
	return b.State == Removed || b.State == Ejected || b.Failing && b.State != Active
}

// Drains reports whether b is draining, or removed with connections that may continue.
func (b Backend) Drains() bool { return b.State == Draining || b.State == Removed }

// Expired reports whether the deadline for b's connections has passed.
func (b Backend) Expired(now time.Time) bool { return !b.Until.IsZero() && !now.Before(b.Until) }

// FrontendsOn yields the frontends on an address, in key order.
func FrontendsOn(frontends snap.Map[Key, *Frontend], a netip.Addr) iter.Seq2[Key, *Frontend] {
	return frontends.While(Key{Addr: a}, func(k Key) bool { return k.Addr == a })
}

// FrontendAt returns the frontend that gets connections to an address and port, and its key. A
// frontend of exactly this port has priority over ranges, and a narrow range over a wider range.
func FrontendAt(frontends snap.Map[Key, *Frontend], at Key) (Key, *Frontend) {
	if f, ok := frontends.Get(at); ok {
		return at, f
	}
	var best Key
	firstRange := Key{Addr: at.Addr, Port: 1 << 16}
	for k := range frontends.While(firstRange, func(k Key) bool { return k.Addr == at.Addr }) {
		if k.Proto == at.Proto && k.Port.Contains(at.Port.First()) && (best.Port == 0 || best.Port == AllPorts) {
			best = k
		}
	}
	if best.Port == 0 {
		return at, nil
	}
	return best, frontends.At(best)
}

// AddrOf returns the address and port to which f forwards connections to key if it chooses the
// backend at b. The key is the frontend's own key, or names one port in the frontend's range.
func (f *Frontend) AddrOf(b netip.AddrPort, key Key) netip.AddrPort {
	return netip.AddrPortFrom(b.Addr(), b.Port()+key.Port.First()-f.Key.Port.First())
}

// Target returns the endpoint of b, a backend of f.
func (f *Frontend) Target(b Backend) Target {
	return Target{Service: f.Service, Addr: b.Addr.Addr(), Port: b.Addr.Port()}
}

// BackendState is Active if a backend gets new connections. Otherwise it is the reason why the
// backend gets none.
type BackendState string

// These are the states. Only Active backends get new connections. If connections to all Active
// backends fail, a mode may also try Standby and then Ejected backends. Established connections
// continue in all states, up to Backend.Until.
const (
	// Active backends get new connections.
	Active BackendState = "active"
	// Standby backends are backups that are not used because other backends are up.
	Standby BackendState = "standby"
	// Remote backends are excluded by locality.
	Remote BackendState = "remote"
	// ZeroWeight backends have weight 0, or their agents request 0 percent of their weight.
	ZeroWeight BackendState = "zero-weight"
	// Draining backends are drained by definition, by an override or by an agent.
	Draining BackendState = "draining"
	// Down backends fail their health checks, or their agents report them as down.
	Down BackendState = "down"
	// Untested backends have not finished their first health check while other backends are up.
	Untested BackendState = "untested"
	// Insufficient backends are healthy, but not used because fewer than MinUsable backends are
	// usable.
	Insufficient BackendState = "insufficient"
	// Ejected backends refuse connections (see Inputs.Ejected) while other backends are usable.
	Ejected BackendState = "ejected"
	// Removed backends are no longer endpoints of the service. Their connections may continue until
	// Until.
	Removed BackendState = "removed"
)

// Backend returns the backend at an address, or nil.
func (f *Frontend) Backend(at netip.AddrPort) *Backend {
	i, found := slices.BinarySearchFunc(f.Backends, at, func(b Backend, at netip.AddrPort) int { return b.Addr.Compare(at) })
	if !found {
		return nil
	}
	return &f.Backends[i]
}

// Serves reports whether any backend gets new connections.
func (f *Frontend) Serves() bool {
	return slices.ContainsFunc(f.Backends, func(b Backend) bool { return b.State == Active })
}

// Allows reports whether the source ranges of f contain client. The node itself may always connect;
// the caller checks for it.
func (f *Frontend) Allows(client netip.Addr) bool {
	return contains(f.Sources, client)
}

// AllowsClient reports whether a PROXY header may name client.
func (f *Frontend) AllowsClient(client netip.Addr) bool { return contains(f.Clients, client) }

// contains reports whether any network contains addr, or there are no networks.
func contains(networks []netip.Prefix, addr netip.Addr) bool {
	addr = addr.WithZone("")
	return len(networks) == 0 || slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Equal reports whether two frontends are equal in every field.
func (f *Frontend) Equal(g *Frontend) bool {
	if f == g || f == nil || g == nil {
		return f == g
	}
	return f.scalars() == g.scalars() && slices.Equal(f.Sources, g.Sources) && slices.Equal(f.Clients, g.Clients) && slices.Equal(f.Foreign, g.Foreign) && slices.Equal(f.Open, g.Open) &&
		slices.EqualFunc(f.Backends, g.Backends, Backend.Equal)
}

// scalars holds a frontend's fields that == can compare. A test proves that no field is missing.
type scalars struct {
	key            Key
	nodePort       bool
	service        Name
	port           string
	policy         Policy
	affinity, idle time.Duration
	scope          AffinityScope
	prefix         int
	limits         ClientLimits
	movable        bool
	withdrawn      bool
}

func (f *Frontend) scalars() scalars {
	return scalars{
		f.Key, f.NodePort, f.Service, f.Port, f.Policy, f.AffinityTimeout, f.IdleTimeout, f.AffinityScope, f.AffinityPrefix, f.Limits, f.Movable, f.Withdrawn,
	}
}

// Equal reports whether two backends are equal in every field.
func (b Backend) Equal(c Backend) bool {
	return b.Addr == c.Addr && b.State == c.State && b.Weight == c.Weight && b.Until.Equal(c.Until) &&
		b.MaxConnections == c.MaxConnections && b.Failing == c.Failing
}
