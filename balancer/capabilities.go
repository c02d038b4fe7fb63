package balancer

import (
	"fmt"
	"maps"
	"slices"
)

// Capabilities describes the features that a mode supports on this host. The compiler reports each
// unsupported setting as a problem, and uses the nearest supported alternative if there is one.
type Capabilities struct {
	// Mode is the name of the mode, for messages.
	Mode string
	// Protocols are the supported protocols. Ports with another protocol are not served.
	Protocols []Protocol
	// MaxPorts is the maximum number of ports in a range. 0 means that ranges are not served.
	MaxPorts int
	// RangeAffinity reports whether affinity works on port ranges.
	RangeAffinity bool
	// MaxMovedPorts is the maximum number of ports in a range whose endpoints listen on different
	// ports than the VIP. 0 means that endpoints must listen on the same ports as the VIP.
	MaxMovedPorts int
	// MaxMovedRules is the maximum number of such ports times the number of endpoints. 0 means no
	// limit.
	MaxMovedRules int
	// Nearest maps each unsupported scheduler to its replacement. All other schedulers are
	// supported, exactly or by an equivalent.
	Nearest map[Scheduler]Scheduler
	// Forwards are the supported forwarding methods.
	Forwards []Forward
	// Untranslated are the methods in Forwards that do not translate addresses. Endpoints receive
	// them on the frontend's address and port, and answer clients directly. A frontend that such a
	// method can't serve uses nat.
	Untranslated []Forward
	// Stateless reports whether the Untranslated methods do not track connections. If so, they then
	// choose endpoints by a hash, and can't limit clients.
	Stateless bool
	// KeepsSource reports whether the mode can keep the client's address as the source (snat =
	// "never").
	KeepsSource bool
	// ClientSource reports whether the mode can open connections from the client's address (source
	// = "client").
	ClientSource bool
	// ProxyProtocol reports whether the mode can send PROXY headers.
	ProxyProtocol bool
	// AcceptsProxy reports whether the mode can read the PROXY headers of clients.
	AcceptsProxy bool
	// Timeouts reports whether connect_timeout, idle_timeout and max_connection_age are supported.
	Timeouts bool
	// MaxConnections reports whether the number of connections to an endpoint can be limited.
	MaxConnections bool
	// AffinityUnbounded reports whether clients with affinity can exceed MaxConnections.
	AffinityUnbounded bool
	// AffinityScopes are the supported scopes beyond PortScope.
	AffinityScopes []AffinityScope
	// AffinityPrefix reports whether affinity can group clients by a prefix of their address.
	AffinityPrefix bool
	// Slots limits the precision of weights. A frontend hashes new connections to Slots slots, or
	// to SlotsEach slots per endpoint if that is more. Each slot belongs to one endpoint. If Slots
	// is zero, weights are exact.
	Slots, SlotsEach int
	// EnforcesSources reports whether the mode itself enforces source_ranges, even if the host's
	// guard can't.
	EnforcesSources bool
	// DropsClients reports whether the mode can leave clients without an answer (no_endpoints =
	// "drop").
	DropsClients bool
	// ResetsOverLimit reports whether the mode resets TCP connections over a limit, and drops
	// datagrams over a limit, whatever limits.over is.
	ResetsOverLimit bool
	// LoopbackVIPs reports whether VIPs and endpoints in 127.0.0.0/8 and ::1 work for clients on
	// other hosts.
	LoopbackVIPs bool
}

// reportUnsupported reports the settings of the service and its endpoints that c does not support.
func (u *compiledService) reportUnsupported(c *Capabilities, endpoints []*Endpoint) {
	s := u.service
	nearest := func(field, what, instead string) {
		u.problem(SeverityNearest, field, "%s mode can't %s; %s", c.Mode, what, instead)
	}
	if n, ok := c.nearestScheduler(s.Scheduler, s.Forward); ok {
		nearest("scheduler", "schedule by "+string(s.Scheduler), "it uses "+string(n)+" instead")
	}
	if !slices.Contains(c.Forwards, s.Forward) {
		nearest("forward", "forward by "+string(s.Forward), "it uses nat instead")
	}
	if slices.Contains(c.Untranslated, s.Forward) {
		u.reportUntranslated(c, endpoints, nearest)
	}
	fromClient := s.Source == ClientSource && c.ClientSource
	if s.SNAT == NeverSNAT && !c.KeepsSource && !fromClient {
		nearest("snat", "keep the client's address", `endpoints see this node's address (source = "client" keeps the client's address, and proxy_protocol sends it)`)
	}
	if s.Source == ClientSource && !c.KeepsSource && !fromClient {
		nearest("source", "use the client's address here", "endpoints see this node's address. To use the client's address, run vipd on Linux, as root or with its systemd unit")
	}
	if s.ProxyProtocol != NoProxyProtocol && !c.ProxyProtocol {
		nearest("proxy_protocol", "send PROXY headers", "endpoints receive no header")
	}
	has := func(proto Protocol) bool {
		return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol == proto })
	}
	if s.ConnectTimeout > 0 && s.ConnectTimeout != defaultConnectTimeout && has(TCP) && !c.Timeouts {
		nearest("connect_timeout", "retry a connection on another endpoint", "clients wait until their own timeout")
	}
	if s.IdleTimeout != nil && (*s.IdleTimeout > 0 || has(UDP)) && !c.Timeouts { // by default, TCP connections never expire
		nearest("idle_timeout", "end idle connections", "the kernel's own timeouts apply")
	}
	if s.MaxConnectionAge > 0 && has(TCP) && !c.Timeouts {
		nearest("max_connection_age", "end old connections", "they have no maximum age")
	}
	if s.NoEndpoints == DropClients && !c.DropsClients {
		nearest("no_endpoints", "leave clients without an answer", "it rejects them")
	}
	if !c.MaxConnections {
		u.reportEach(endpoints, "max_connections", func(e *Endpoint) bool { return e.MaxConnections > 0 }, func(field, whose string) {
			nearest(field, "bound connections"+whose, "they are not limited")
		})
	}
	bounded := func(e *Endpoint) bool { return e.MaxConnections > 0 }
	if c.MaxConnections && c.AffinityUnbounded && s.Affinity == ClientIPAffinity && slices.ContainsFunc(endpoints, bounded) {
		nearest("affinity", "apply max_connections to clients that return to their endpoint", "only new clients are limited")
	}
	u.reportAffinity(c)
	u.reportLimits(c, nearest)
	if s.Affinity == ClientIPAffinity && c.MaxPorts > 0 && !c.RangeAffinity && slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Port.IsRange() }) {
		nearest("affinity", "keep a client on its endpoint across a range of ports", "use scheduler sh or mh")
	}
	if !c.LoopbackVIPs {
		for i, vip := range s.Addresses() {
			if vip.IsLoopback() {
				nearest(s.vipField(i), "serve loopback VIPs to clients on other hosts", "only programs on this host can reach it")
			}
		}
		u.reportEach(endpoints, "address", func(e *Endpoint) bool { return e.Address.IsLoopback() }, func(field, whose string) {
			nearest(field, "forward clients on other hosts to loopback addresses"+whose, "only programs on this host can reach them")
		})
	}
}

// serves reports whether the mode serves port i of the service. If not, it adds a problem with the
// reason.
func (u *compiledService) serves(c *Capabilities, i int) bool {
	p := &u.service.Ports[i]
	switch {
	case !slices.Contains(c.Protocols, p.Protocol):
		u.problem(SeverityError, element("ports", i, "protocol"), "%s mode does not support %s: port %s is not served. It supports %s",
			c.Mode, p.Protocol, p.Port, joinWords(c.Protocols))
	case u.service.AcceptProxyProtocol && p.Protocol == TCP && !c.AcceptsProxy:
		u.problem(SeverityError, "accept_proxy_protocol", "%s mode can't read PROXY headers: port %s is not served. Use userspace mode", c.Mode, p.Port)
	case p.Port.IsRange() && c.MaxPorts == 0:
		u.problem(SeverityError, element("ports", i, "port"), "%s mode does not support ranges of ports: port %s is not served", c.Mode, p.Port)
	case p.Port.IsRange() && p.Port.Len() > c.MaxPorts:
		u.problem(SeverityError, element("ports", i, "port"), "%s mode supports ranges of up to %d ports: port %s is not served", c.Mode, c.MaxPorts, p.Port)
	case p.TargetPort != p.Port && p.Port.IsRange() && c.MaxMovedPorts == 0:
		u.problem(SeverityError, element("ports", i, "target_port"), "%s mode can't map a range to other ports: port %s is not served. Use nftables mode, or let the endpoints listen on the same ports", c.Mode, p.Port)
	case p.TargetPort != p.Port && p.Port.IsRange() && p.Port.Len() > c.MaxMovedPorts:
		u.problem(SeverityError, element("ports", i, "target_port"), "%s mode can map ranges of up to %d ports to other ports: port %s is not served. Divide the range, or let the endpoints listen on the same ports",
			c.Mode, c.MaxMovedPorts, p.Port)
	case p.TargetPort != p.Port && p.Port.IsRange() && c.MaxMovedRules > 0 && p.Port.Len()*len(u.service.Endpoints) > c.MaxMovedRules:
		u.problem(SeverityError, element("ports", i, "target_port"), "%s mode needs a rule for each port and endpoint, %d at most: port %s is not served. Use nftables mode, or let the endpoints listen on the same ports",
			c.Mode, c.MaxMovedRules, p.Port)
	default:
		return true
	}
	return false
}

// reportSmallWeights reports endpoints that get more than twice their share of connections because
// their weight is less than half a slot.
func (u *compiledService) reportSmallWeights(c *Capabilities, endpoints []*Endpoint) {
	if c.Slots == 0 || !u.service.Scheduler.SharesByWeight() {
		return
	}
	for _, v4 := range []bool{true, false} {
		sum, n := 0, 0
		shares := func(e *Endpoint) bool { return e.Address.Is4() == v4 && !e.Backup && e.Weight > 0 }
		for _, e := range endpoints {
			if shares(e) {
				sum, n = sum+e.Weight, n+1
			}
		}
		slots := max(c.Slots, c.SlotsEach*n)
		small := func(e *Endpoint) bool { return shares(e) && 2*e.Weight*slots < sum }
		u.reportEach(endpoints, "weight", small, func(field, whose string) {
			u.problem(SeverityWarning, field, "too small compared with the other weights%s: %s mode gives an endpoint at least 1/%d of the new connections", whose, c.Mode, slots)
		})
	}
}

// reportEach calls the function report for the endpoints for which has returns true. For each
// endpoint in the service's definition, it passes the path of the endpoint's field. Registered and
// discovered endpoints have no field in the definition, so the argument whose describes them: it
// calls report once for all registered endpoints, and once for each lookup.
func (u *compiledService) reportEach(endpoints []*Endpoint, field string, has func(*Endpoint) bool, report func(field, whose string)) {
	var own map[*Endpoint]int
	var registered []*Endpoint
	resolved := map[Lookup][]*Endpoint{}
	for _, e := range endpoints {
		if !has(e) {
			continue
		}
		if own == nil {
			own = make(map[*Endpoint]int, len(u.service.Endpoints))
			for i := range u.service.Endpoints {
				own[&u.service.Endpoints[i]] = i
			}
		}
		i, isOwn := own[e]
		switch {
		case isOwn:
			report(element("endpoints", i, field), "")
		case e.From != Lookup{}:
			resolved[e.From] = append(resolved[e.From], e)
		default:
			registered = append(registered, e)
		}
	}
	if len(registered) > 0 {
		report("endpoints", " (registered: "+firstAndCount(registered)+")")
	}
	for _, l := range slices.SortedFunc(maps.Keys(resolved), Lookup.Compare) {
		report(u.lookupField(l), fmt.Sprintf(" (%s: %s)", l, firstAndCount(resolved[l])))
	}
}

// lookupField returns the path of the field that requests lookup l. It returns "endpoints" for an
// endpoint that was registered separately.
func (u *compiledService) lookupField(l Lookup) string {
	if l.Kind != HostLookup {
		return "discover"
	}
	i := slices.IndexFunc(u.service.Endpoints, func(e Endpoint) bool { return e.Name == l.Name })
	if i < 0 {
		return "endpoints"
	}
	return element("endpoints", i, "address")
}

func firstAndCount(endpoints []*Endpoint) string {
	first := endpoints[0].Address.String()
	if len(endpoints) > 1 {
		return fmt.Sprintf("%s and %d more", first, len(endpoints)-1)
	}
	return first
}

// reportUntranslated reports the ports and settings that a forwarding method without address
// translation can't serve.
func (u *compiledService) reportUntranslated(c *Capabilities, endpoints []*Endpoint, nearest func(field, what, instead string)) {
	s := u.service
	for i := range s.Ports {
		p := &s.Ports[i]
		at := fmt.Sprintf("ports[%d]", i)
		if p.NodePort != 0 {
			nearest(at+".node_port", "forward node ports by "+string(s.Forward)+", because endpoints lack the node's address", "it uses nat for them")
		}
		mismatch := slices.IndexFunc(endpoints, func(e *Endpoint) bool { return e.TargetPort(p) != p.Port.First() })
		if mismatch < 0 {
			continue
		}
		if p.TargetPort != p.Port {
			at += ".target_port"
		}
		e := endpoints[mismatch]
		nearest(at, fmt.Sprintf("forward by %s to a port other than the VIP's: endpoint %s has port %d, but packets keep port %s", s.Forward, e.Address, e.TargetPort(p), p.Port),
			"it uses nat instead")
	}
	if i := slices.IndexFunc(s.Ports, func(p Port) bool { return p.Port.IsRange() }); i >= 0 {
		nearest(element("ports", i, "port"), "forward ranges of ports by "+string(s.Forward), "it uses nat for them")
	}
	if c.Stateless && s.Limits != nil {
		nearest("limits", "limit clients when it forwards by "+string(s.Forward), "it uses nat instead")
	}
	if c.Stateless && s.AffinityPrefix != nil {
		nearest("affinity_prefix", "group clients by a prefix when it forwards by "+string(s.Forward), "it treats each address as a client")
	}
	if s.SNAT == AlwaysSNAT {
		nearest("snat", "replace the client's address when it forwards by "+string(s.Forward), "endpoints see the client's address")
	}
}

// nearestScheduler returns the scheduler that replaces s with the forwarding method by. The bool is
// false if the mode supports s itself.
func (c *Capabilities) nearestScheduler(s Scheduler, by Forward) (Scheduler, bool) {
	n, ok := c.Nearest[s]
	if ok && c.Stateless && slices.Contains(c.Untranslated, by) {
		n = Maglev
	}
	return n, ok
}

// fit replaces settings of f that the mode does not support with the nearest alternatives.
func (c *Capabilities) fit(f *Frontend) {
	if n, ok := c.nearestScheduler(f.Scheduler, f.Forward); ok {
		f.Scheduler = n
	}
	if !slices.Contains(c.Forwards, f.Forward) {
		f.Forward = NATForward
	}
	if slices.Contains(c.Untranslated, f.Forward) {
		if c.Stateless && f.Limits.limits() || f.NodePort || f.Key.Port.IsRange() || slices.ContainsFunc(f.Backends, func(b Backend) bool { return b.Addr.Port() != f.Key.Port.First() }) {
			f.Forward = NATForward
		} else if f.SNAT = NeverSNAT; c.Stateless { // the node's own connections are translated
			f.SNAT = AutoSNAT
		}
	}
	if f.SNAT == NeverSNAT && !c.KeepsSource {
		f.SNAT = AutoSNAT
	}
	if !c.ClientSource || f.NodePort {
		f.Source = NodeSource
	}
	if f.Key.Port.IsRange() && !c.RangeAffinity {
		f.AffinityTimeout = 0
		f.AffinityScope = ""
		f.AffinityPrefix = 0
	}
	if f.Key.Port.IsRange() {
		f.MSS = 0
	}
	if !c.ProxyProtocol || f.Proto != TCP && f.ProxyProtocol != ProxyProtocolV2 { // only version 2 supports datagrams
		f.ProxyProtocol = NoProxyProtocol
	}
	if f.Proto != TCP {
		f.AcceptProxyProtocol, f.MaxConnectionAge = false, 0
	}
	if f.NoEndpoints == DropClients && !c.DropsClients {
		f.NoEndpoints = RejectClients
	}
	f.AffinityScope = c.nearestScope(f.AffinityScope)
	if !c.AffinityPrefix {
		f.AffinityPrefix = 0
	}
	f.fitLimits()
}
