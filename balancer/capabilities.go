package balancer

import (
	"fmt"
	"slices"
)

// Capabilities is what a mode can honour on this host. Compile reports what a service asks beyond it as problems; the
// mode then serves the nearest.
type Capabilities struct {
	// Mode is the mode's name, for messages.
	Mode string
	// Protocols are those it can serve; services on others are not served at all.
	Protocols []Protocol
	// Nearest holds, for each scheduler that it can't do, the one that it does instead. A scheduler that is absent here
	// is honoured, exactly or by an equivalent.
	Nearest map[Scheduler]Scheduler
	// Forwards are the ways to forward that it can do.
	Forwards []Forward
	// Untranslated are those of them that leave packets as they are: endpoints take them on the frontend's own address and
	// port, and answer clients themselves. A frontend that they can't serve so is forwarded to by nat.
	Untranslated []Forward
	// KeepsSource: the client's address can reach the endpoint (snat = "never").
	KeepsSource bool
	// ProxyProtocol: it can send PROXY headers.
	ProxyProtocol bool
	// Timeouts: it can honour connect_timeout and idle_timeout.
	Timeouts bool
	// MaxConnections: it can bound connections per endpoint.
	MaxConnections bool
	// AffinityUnbounded: clients that affinity sends to an endpoint again come beyond that bound.
	AffinityUnbounded bool
	// EnforcesSources: it keeps clients outside source_ranges out by itself, also where the host's guard can't.
	EnforcesSources bool
	// DropsClients: it can leave clients without any answer (no_endpoints = "drop").
	DropsClients bool
	// LoopbackVIPs: forwarded clients apart, VIPs in 127.0.0.0/8 and ::1 can be served, and endpoints there reached.
	LoopbackVIPs bool
}

// capabilities reports what the service asks beyond c, with these endpoints.
func (u *unit) capabilities(c *Capabilities, endpoints []*Endpoint) {
	s := u.service
	nearest := func(field, what, instead string) {
		u.problem(SeverityNearest, field, "%s mode can't %s; %s", c.Mode, what, instead)
	}
	if n, ok := c.Nearest[s.Scheduler]; ok {
		nearest("scheduler", "schedule by "+string(s.Scheduler), "it uses "+string(n)+" instead")
	}
	if !slices.Contains(c.Forwards, s.Forward) {
		nearest("forward", "forward by "+string(s.Forward), "it forwards by nat")
	}
	if slices.Contains(c.Untranslated, s.Forward) {
		u.untranslated(endpoints, nearest)
	}
	if s.SNAT == NeverSNAT && !c.KeepsSource {
		nearest("snat", "keep the client's address", "endpoints see this node's (proxy_protocol tells them the client's)")
	}
	if s.ProxyProtocol != NoProxyProtocol && !c.ProxyProtocol {
		nearest("proxy_protocol", "send PROXY headers", "endpoints get none")
	}
	has := func(proto Protocol) bool {
		return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol == proto })
	}
	if s.ConnectTimeout > 0 && s.ConnectTimeout != defaultConnectTimeout && has(TCP) && !c.Timeouts {
		nearest("connect_timeout", "try another endpoint for a connection", "clients wait for as long as they do")
	}
	if s.IdleTimeout != nil && (*s.IdleTimeout > 0 || has(UDP)) && !c.Timeouts { // never is TCP's default
		nearest("idle_timeout", "end idle connections", "the kernel's own timeouts hold")
	}
	if s.NoEndpoints == DropClients && !c.DropsClients {
		nearest("no_endpoints", "leave clients without an answer", "it rejects them")
	}
	if !c.MaxConnections {
		u.each(endpoints, "max_connections", func(e *Endpoint) bool { return e.MaxConnections > 0 }, func(field, whose string) {
			nearest(field, "bound connections"+whose, "they are not bounded")
		})
	}
	bounded := func(e *Endpoint) bool { return e.MaxConnections > 0 }
	if c.MaxConnections && c.AffinityUnbounded && s.Affinity == ClientIPAffinity && slices.ContainsFunc(endpoints, bounded) {
		nearest("affinity", "keep max_connections for clients that have been on an endpoint before", "only new clients are bounded")
	}
	if !c.LoopbackVIPs {
		for i, vip := range s.Addresses() {
			if vip.IsLoopback() {
				nearest(s.vipField(i), "serve loopback VIPs to clients beyond this host", "programs of this host reach it")
			}
		}
		u.each(endpoints, "address", func(e *Endpoint) bool { return e.Address.IsLoopback() }, func(field, whose string) {
			nearest(field, "forward clients beyond this host to loopback addresses"+whose, "programs of this host reach them")
		})
	}
}

// each calls tell for each of the endpoints that has it: with the path of its field where it is one of the service's own, and
// once for all that were published apart, which have no place in the service's text, with words that name them.
func (u *unit) each(endpoints []*Endpoint, field string, has func(*Endpoint) bool, tell func(field, whose string)) {
	var own map[*Endpoint]int
	var apart []*Endpoint
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
		if i, there := own[e]; there {
			tell(element("endpoints", i, field), "")
		} else {
			apart = append(apart, e)
		}
	}
	if len(apart) > 0 {
		tell("endpoints", " (registered: "+some(apart)+")")
	}
}

// some names the first of the endpoints, and how many more there are.
func some(endpoints []*Endpoint) string {
	first := endpoints[0].Address.String()
	if len(endpoints) > 1 {
		return fmt.Sprintf("%s and %d more", first, len(endpoints)-1)
	}
	return first
}

// untranslated reports what keeps ports of a service, or clients' addresses, from being left as they are.
func (u *unit) untranslated(endpoints []*Endpoint, nearest func(field, what, instead string)) {
	s := u.service
	for i := range s.Ports {
		p := &s.Ports[i]
		at := fmt.Sprintf("ports[%d]", i)
		if p.NodePort != 0 {
			nearest(at+".node_port", "forward by "+string(s.Forward)+" what comes to the node's own address, which endpoints do not have", "it forwards that by nat")
		}
		other := slices.IndexFunc(endpoints, func(e *Endpoint) bool { return e.TargetPort(p) != p.Port })
		if other < 0 {
			continue
		}
		if p.TargetPort != p.Port {
			at += ".target_port"
		}
		e := endpoints[other]
		nearest(at, fmt.Sprintf("forward by %s to another port than the VIP's: endpoint %s has port %d, and packets stay addressed to port %d", s.Forward, e.Address, e.TargetPort(p), p.Port),
			"it forwards by nat")
	}
	if s.SNAT == AlwaysSNAT {
		nearest("snat", "replace the client's address where it forwards by "+string(s.Forward), "endpoints see the client's")
	}
}

// fit makes f what the mode can do: the nearest to what it asks.
func (c *Capabilities) fit(f *Frontend) {
	if n, ok := c.Nearest[f.Scheduler]; ok {
		f.Scheduler = n
	}
	if !slices.Contains(c.Forwards, f.Forward) {
		f.Forward = NATForward
	}
	if slices.Contains(c.Untranslated, f.Forward) {
		if f.NodePort || slices.ContainsFunc(f.Backends, func(b Backend) bool { return b.Addr.Port() != f.Key.Port }) {
			f.Forward = NATForward
		} else {
			f.SNAT = NeverSNAT
		}
	}
	if f.SNAT == NeverSNAT && !c.KeepsSource {
		f.SNAT = AutoSNAT
	}
	if !c.ProxyProtocol || f.Proto != TCP { // the header goes ahead of a byte stream
		f.ProxyProtocol = NoProxyProtocol
	}
	if f.NoEndpoints == DropClients && !c.DropsClients {
		f.NoEndpoints = RejectClients
	}
}
