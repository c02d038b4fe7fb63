package userspace

import (
	"net/netip"
	"sync"
	"time"

	"vipd/balancer"
)

// maxSources is the maximum number of sources that an admitter counts. Additional sources have no
// per-source limits.
const maxSources = 1 << 16

// admitter counts the connections of a service's clients in one address family, to enforce the
// client limits of the service's frontends. Connections and flows that were open before the service
// had limits are not counted.
type admitter struct {
	key   admitterKey
	users int // number of frontends that use this admitter; guarded by the mu of admitters

	mu      sync.Mutex // guards the fields below
	total   int
	sources map[netip.Addr]*source
	// sweepAt is the number of sources at which idle sources are removed. It is twice the number
	// that remained after the last removal, so the cost of a removal is spread over as many
	// additions.
	sweepAt int
	// swept is when idle sources were last removed. A full admitter removes sources at most once in
	// sweepPause.
	swept time.Time
	// full records when a source last had no limits because there were too many sources.
	full shortage
}

// source holds the connection counts of a client network.
type source struct {
	conns int
	// credit is the number of connections that the source could open at the time stored in the
	// field "at".
	credit float64
	at     time.Time
}

// minSweep is the minimum number of sources at which idle sources are removed.
const minSweep = 1024

// sweepPause is the minimum time between two removals. Checking all sources takes a millisecond,
// and a flood from many sources must not trigger this check for each connection.
const sweepPause = time.Second

func newAdmitter(k admitterKey) *admitter {
	return &admitter{key: k, sources: map[netip.Addr]*source{}, sweepAt: minSweep}
}

// admission is a counted connection. The zero value means that the connection is not counted.
type admission struct {
	by     *admitter
	source netip.Addr // invalid if the source is not counted
}

// admit counts a connection of a client, and reports whether the connection is within the limits.
func (a *admitter) admit(client netip.Addr, l balancer.ClientLimits, now time.Time) (admission, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := admission{by: a}
	if l.SourcePrefix > 0 {
		key := netip.PrefixFrom(client.WithZone(""), l.SourcePrefix).Masked().Addr()
		if s := a.sourceLocked(key, l.SourceRate, now); s == nil {
			a.full.note()
		} else if !s.open(l, now) {
			return admission{}, false
		} else {
			n.source = key
		}
	}
	if l.Connections > 0 && a.total >= l.Connections {
		return admission{}, false
	}
	a.total++
	if n.source.IsValid() {
		a.sources[n.source].conns++
	}
	return n, true
}

// end removes a connection from the counts.
func (n admission) end() {
	if n.by == nil {
		return
	}
	n.by.mu.Lock()
	defer n.by.mu.Unlock()
	n.by.total--
	if s := n.by.sources[n.source]; s != nil {
		s.conns--
	}
}

// sourceLocked returns the entry in sources for a client network, and adds it if missing. It
// returns nil if there are too many sources.
func (a *admitter) sourceLocked(key netip.Addr, r balancer.Rate, now time.Time) *source {
	if s := a.sources[key]; s != nil {
		return s
	}
	if len(a.sources) >= a.sweepAt && now.Sub(a.swept) >= sweepPause {
		a.swept = now
		for k, s := range a.sources {
			if s.conns == 0 && (r.N == 0 || now.Sub(s.at) >= r.Per) {
				delete(a.sources, k)
			}
		}
		a.sweepAt = min(max(minSweep, 2*len(a.sources)), maxSources)
	}
	if len(a.sources) >= maxSources {
		return nil
	}
	s := &source{credit: float64(r.N), at: now}
	a.sources[key] = s
	return s
}

// open reports whether another connection is within the limits of the source. If so, it subtracts
// the connection from the source's credit.
func (s *source) open(l balancer.ClientLimits, now time.Time) bool {
	if r := l.SourceRate; r.N > 0 {
		s.credit = min(s.credit+float64(r.N)*float64(now.Sub(s.at))/float64(r.Per), float64(r.N))
		s.at = now
		if s.credit < 1 {
			return false
		}
	}
	if l.SourceConnections > 0 && s.conns >= l.SourceConnections {
		return false
	}
	if l.SourceRate.N > 0 {
		s.credit--
	}
	return true
}

type admitters struct {
	mu  sync.Mutex
	all map[admitterKey]*admitter
}

type admitterKey struct {
	service balancer.Name
	is4     bool
}

// share returns the admitter for g, the new definition of f. It counts f as a user of this
// admitter, and no longer as a user of the previous one. It returns nil if g is nil or has no
// limits. An admitter without users is removed.
func (s *admitters) share(f *frontend, g *balancer.Frontend) (next *admitter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g != nil && !g.Limits.IsZero() {
		k := admitterKey{g.Service, g.Addr.Is4()}
		if s.all == nil {
			s.all = map[admitterKey]*admitter{}
		}
		if next = s.all[k]; next == nil {
			next = newAdmitter(k)
			s.all[k] = next
		}
	}
	if next == f.admitter {
		return next
	}
	if next != nil {
		next.users++
	}
	if old := f.admitter; old != nil {
		if old.users--; old.users == 0 {
			delete(s.all, old.key)
		}
	}
	return next
}

// admitLocked counts a connection of a client, and reports whether it is within the limits. The
// node's own connections have no limits.
func (f *frontend) admitLocked(client netip.Addr) (admission, bool) {
	c := f.conf.Load()
	if f.admitter == nil || c.isExempt(f.d, client) {
		return admission{}, true
	}
	return f.admitter.admit(client, c.limitsOf(client), time.Now())
}

// isExempt reports whether no limits apply to client because it is the node itself. A client from a
// PROXY header is never exempt.
func (c *config) isExempt(d *Dataplane, client netip.Addr) bool {
	return !c.AcceptProxyProtocol && c.isOwn(d, client)
}

// limitsOf returns the client limits that apply to a client. If a PROXY header names a client of
// the other address family, the limits use the default source prefix length.
func (c *config) limitsOf(client netip.Addr) balancer.ClientLimits {
	l := c.Limits
	if l.SourcePrefix > 0 && client.Is4() != c.Addr.Is4() {
		l.SourcePrefix = min(64, client.BitLen())
	}
	return l
}

// recountLocked counts a connection that an earlier process handed over, regardless of the limits.
func (f *frontend) recountLocked(client netip.Addr) admission {
	c := f.conf.Load()
	if f.admitter == nil || c.isExempt(f.d, client) {
		return admission{}
	}
	n, _ := f.admitter.admit(client, balancer.ClientLimits{SourcePrefix: c.limitsOf(client).SourcePrefix}, time.Now())
	return n
}

// FullLimits implements [dataplane.CountsClients].
func (d *Dataplane) FullLimits() (services []balancer.Name) {
	d.admitters.mu.Lock()
	defer d.admitters.mu.Unlock()
	for k, a := range d.admitters.all {
		if a.full.isRecent() {
			services = append(services, k.service)
		}
	}
	return services
}
