package userspace

import (
	"fmt"
	"net/netip"
	"strings"

	"vipd/balancer"
)

// Render returns the definitions of frontends as text, with a line for each listener and backend.
func Render(frontends []*balancer.Frontend) string {
	var b strings.Builder
	for _, f := range frontends {
		fmt.Fprintf(&b, "# service %s", f.Service)
		if f.Port != "" {
			fmt.Fprintf(&b, ", port %s", f.Port)
		}
		b.WriteByte('\n')
		fmt.Fprintf(&b, "listen %s scheduler %s", f.Key, f.Scheduler)
		for _, o := range options(f) {
			b.WriteString(" " + o)
		}
		b.WriteByte('\n')
		for _, x := range f.Backends {
			fmt.Fprintf(&b, "  backend %s weight %d", backendPorts(f, x.Addr), x.Weight)
			if x.State != balancer.Active {
				fmt.Fprintf(&b, " %s", x.State)
			}
			if x.MaxConnections > 0 {
				fmt.Fprintf(&b, " max_connections %d", x.MaxConnections)
			}
			b.WriteByte('\n')
		}
		if !f.Serves() {
			fmt.Fprintf(&b, "  none: %s\n", f.NoEndpoints)
		}
	}
	return b.String()
}

// backendPorts formats the address of a backend. For a port range, it includes all ports.
func backendPorts(f *balancer.Frontend, at netip.AddrPort) string {
	ports := balancer.NewPortRange(at.Port(), at.Port()+uint16(f.Key.Port.Len()-1))
	return balancer.Key{Addr: at.Addr(), Port: ports}.Place()
}

// options returns the settings of f that are in effect, as words.
func options(f *balancer.Frontend) []string {
	var o []string
	if f.AffinityTimeout > 0 {
		o = append(o, "affinity "+f.AffinityTimeout.String())
	}
	if f.AffinityScope != "" {
		o = append(o, "affinity_scope "+string(f.AffinityScope))
	}
	if f.AffinityPrefix > 0 {
		o = append(o, fmt.Sprintf("affinity_prefix %d", f.AffinityPrefix))
	}
	if len(f.Foreign) > 0 {
		o = append(o, fmt.Sprintf("foreign endpoints %v", f.Foreign))
	}
	for _, n := range []struct {
		word     string
		networks []netip.Prefix
	}{{"from", f.Sources}, {"clients", f.Clients}} {
		if len(n.networks) > 0 {
			o = append(o, n.word+" "+strings.ReplaceAll(strings.Trim(fmt.Sprint(n.networks), "[]"), " ", ","))
		}
	}
	if !f.Limits.IsZero() {
		o = append(o, "limits "+f.Limits.String())
	}
	if f.Proto == balancer.TCP {
		o = append(o, "connect_timeout "+f.ConnectTimeout.String())
	}
	if f.Proto == balancer.TCP && f.MSS > 0 {
		o = append(o, fmt.Sprintf("mss %d", f.MSS))
	}
	if f.IdleTimeout > 0 {
		o = append(o, "idle_timeout "+f.IdleTimeout.String())
	}
	if f.MaxConnectionAge > 0 {
		o = append(o, "max_connection_age "+f.MaxConnectionAge.String())
	}
	if f.AcceptProxyProtocol {
		o = append(o, "accept_proxy_protocol")
	}
	if f.ProxyProtocol != "" && f.ProxyProtocol != balancer.NoProxyProtocol {
		o = append(o, "proxy_protocol "+string(f.ProxyProtocol))
	}
	if f.Source == balancer.ClientSource {
		o = append(o, "source client")
	}
	return o
}
