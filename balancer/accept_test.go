package balancer_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
)

// TestAcceptedProxyHeaders compiles a service that reads PROXY headers. The TCP frontend must admit
// only trusted senders and the permitted clients. The UDP frontend must ignore the setting. If the
// mode can't read the headers, the TCP port must not be served.
func TestAcceptedProxyHeaders(t *testing.T) {
	trusted, ranges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	s := &balancer.Service{
		Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Trusted: trusted, SourceRanges: ranges,
		Endpoints: []balancer.Endpoint{{Address: netip.MustParseAddr("192.168.1.11"), Weight: 1}},
		Ports:     []balancer.Port{{Name: "t", Port: 80, Protocol: balancer.TCP, TargetPort: 80}, {Name: "u", Port: 80, Protocol: balancer.UDP, TargetPort: 80}},
		Policy: balancer.Policy{
			Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward, NoEndpoints: balancer.RejectClients, ProxyProtocol: balancer.ProxyProtocolV2,
			AcceptProxyProtocol: true, MaxConnectionAge: time.Hour,
		},
	}
	var in balancer.Inputs
	in.Services = in.Services.Set(s.Name, s)
	for _, able := range []bool{true, false} {
		env := plainEnv()
		env.Capabilities.AcceptsProxy = able
		d := balancer.Compile(env, in)
		f := d.Frontends.At(balancer.Key{Addr: s.VIPs[0], Port: 80, Proto: balancer.TCP})
		if (f != nil) != able {
			t.Fatalf("AcceptsProxy = %t: TCP frontend = %+v, want a frontend only if AcceptsProxy is true", able, f)
		}
		if able && (!f.AcceptProxyProtocol || !slices.Equal(f.Sources, trusted) || !slices.Equal(f.Clients, ranges) || f.MaxConnectionAge != time.Hour) {
			t.Errorf("TCP frontend = %+v, want AcceptProxy, sources %v, clients %v and a maximum age of 1h", f, trusted, ranges)
		}
		u := d.Frontends.At(balancer.Key{Addr: s.VIPs[0], Port: 80, Proto: balancer.UDP})
		if u.AcceptProxyProtocol || !slices.Equal(u.Sources, ranges) || len(u.Clients) > 0 || u.ProxyProtocol != balancer.ProxyProtocolV2 || u.MaxConnectionAge != 0 {
			t.Errorf("UDP frontend = %+v, want sources %v, no clients, and sent headers of version 2", u, ranges)
		}
		var problems []string
		if p := d.Problems.At("web"); p != nil {
			for _, p := range *p {
				problems = append(problems, string(p.Severity)+" "+p.Field+": "+p.Text)
			}
		}
		if text := strings.Join(problems, "; "); able == strings.Contains(text, "error accept_proxy_protocol: ") {
			t.Errorf("AcceptsProxy = %t: problems = %s, want an error about accept_proxy_protocol only if AcceptsProxy is false", able, text)
		}
	}
}
