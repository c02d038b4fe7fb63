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
	// KeepsSource: the client's address can reach the endpoint (snat = "never").
	KeepsSource bool
	// ProxyProtocol: it can send PROXY headers.
	ProxyProtocol bool
	// Timeouts: it can honour connect_timeout and idle_timeout.
	Timeouts bool
	// MaxConnections: it can bound connections per endpoint.
	MaxConnections bool
	// DropsClients: it can leave clients without any answer (no_endpoints = "drop").
	DropsClients bool
	// LoopbackVIPs: forwarded clients apart, VIPs in 127.0.0.0/8 and ::1 can be served, and endpoints there reached.
	LoopbackVIPs bool
}

// capabilities reports what the service asks beyond c.
func (u *unit) capabilities(c *Capabilities) {
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
	if s.SNAT == NeverSNAT && !c.KeepsSource {
		nearest("snat", "keep the client's address", "endpoints see this node's (proxy_protocol tells them the client's)")
	}
	if s.ProxyProtocol != NoProxyProtocol && !c.ProxyProtocol {
		nearest("proxy_protocol", "send PROXY headers", "endpoints get none")
	}
	if s.IdleTimeout != nil && !c.Timeouts {
		nearest("idle_timeout", "end idle connections", "the kernel's own timeouts hold")
	}
	if s.NoEndpoints == DropClients && !c.DropsClients {
		nearest("no_endpoints", "leave clients without an answer", "it rejects them")
	}
	if !c.MaxConnections {
		for i := range s.Endpoints {
			if s.Endpoints[i].MaxConnections > 0 {
				nearest(fmt.Sprintf("endpoints[%d].max_connections", i), "bound connections", "they are not bounded")
			}
		}
	}
	if !c.LoopbackVIPs {
		for i, vip := range s.VIPs {
			if vip.IsLoopback() {
				nearest(fmt.Sprintf("vips[%d]", i), "serve loopback VIPs to clients beyond this host", "programs of this host reach it")
			}
		}
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
	if f.SNAT == NeverSNAT && !c.KeepsSource {
		f.SNAT = AutoSNAT
	}
	if !c.ProxyProtocol || f.Proto != TCP { // the header goes ahead of a byte stream
		f.ProxyProtocol = NoProxyProtocol
	}
	if f.NoBackends == DropClients && !c.DropsClients {
		f.NoBackends = RejectClients
	}
}
