package dataplanetest

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/explain"
	"vipd/test/lab"
)

// anycast builds a layout in which another host also has the VIP:
//
//	client --- host --- other, with the VIP
//	            |
//	        s1, s2, s3
func anycast(t testing.TB, l *lab.Lab) *world {
	w := routed(t, l)
	other := l.Add("other")
	l.Link(w.host, other, "10.9.0.1/24", "10.9.0.2/24", "fd09::1/64", "fd09::2/64")
	other.Default("10.9.0.1", "fd09::1")
	w.host.Sysctl("net.ipv4.ip_forward", "1")
	for i, a := range w.vip {
		host := netip.PrefixFrom(a, a.BitLen()).String()
		other.AddAddr("lo", host)
		via := []string{"10.9.0.2", "fd09::2"}[i]
		w.host.Route(host, via)
		t.Cleanup(func() { run(t, "ip", "route", "del", host, "via", via) })
		for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
			other.Echo(string(proto), "other", netip.AddrPortFrom(a, vipPort))
		}
	}
	return w
}

// testWithdrawn withdraws the VIP of a service that has no endpoints, or only draining ones.
// Clients must then reach another host that has the VIP, which must see their addresses. When the
// service has an active endpoint again, clients must reach the service.
func testWithdrawn(t *testing.T, s *Subject) {
	r := newRig(t, s, layout{name: "anycast", build: anycast}, s.newHost(t))
	for _, a := range r.w.vip {
		policy := balancer.DefaultVIPPolicy()
		policy.Withdraw = balancer.WithdrawNoEndpoint
		r.vips = r.vips.Set(a, &balancer.VIP{Addr: a, Given: []string{"withdraw"}, VIPPolicy: policy})
	}
	full := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	idle := edited(full, func(s *balancer.Service) {
		s.NoEndpoints, s.SourceRanges = balancer.DropClients, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
		for i := range s.Endpoints {
			s.Endpoints[i].Draining = true
		}
	})
	for name, withdrawn := range map[string]*balancer.Service{"empty": newService("web", r.w.vip), "draining": idle} {
		r.step(name, func(r *rig) {
			r.apply(full)
			r.awaitVIPs(true)
			r.each(func(r *rig, key balancer.Key) {
				for _, from := range []*lab.NS{r.w.client, r.w.host} {
					if a := r.mustAsk(from, key); a.Server == "other" {
						r.Errorf("%s asks %s: the other host answers, want an answer from a server", from.Name, key)
					}
				}
			})
			r.apply(withdrawn)
			r.awaitVIPs(false)
			r.each(func(r *rig, key balancer.Key) {
				for _, from := range []*lab.NS{r.w.client, r.w.host} {
					a, err := r.ask(from, key)
					own := slices.ContainsFunc(r.w.clients, func(c addrs) bool { return c.inFamilyOf(key.Addr) == a.Client.Addr() })
					if err != nil || a.Server != "other" || from == r.w.client && !own {
						r.Errorf("%s asks %s: answer from %q to %s, %v; want an answer from the other host to the client's own address", from.Name, key, a.Server, a.Client, err)
					}
					checkExplained(r, from, netip.Addr{}, key, explain.Elsewhere)
				}
			})
			damage := r.engine.Status()
			r.pause(3 * r.probe)
			if now := r.engine.Status(); now.Repairs != damage.Repairs {
				r.Errorf("repairs while the VIP is withdrawn = %d, want 0", now.Repairs-damage.Repairs)
			}
		})
	}
}

// awaitVIPs waits until the VIPs' state is Serving if held is true, or Withdrawn if held is false,
// and this state is applied.
func (r *rig) awaitVIPs(held bool) {
	r.Helper()
	state := map[bool]balancer.VIPState{true: balancer.Serving, false: balancer.Withdrawn}[held]
	lab.Eventually(r, time.Minute, "the state of the VIPs", func() error {
		for _, a := range r.w.vip {
			if got := r.wanted().VIPStates.At(a); got != state {
				return fmt.Errorf("state of VIP %s = %s, want %s", a, got, state)
			}
		}
		return r.wait(r.wanted().Revision.Store)
	})
}
