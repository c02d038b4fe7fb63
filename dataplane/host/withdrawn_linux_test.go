package host

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// withdrawing compiles a service on port 80 of VIPs that have withdraw = "no_endpoint". It uses the
// host's current addresses.
func withdrawing(t *testing.T, h *Host, edit func(*balancer.Service), vips ...string) balancer.Desired {
	t.Helper()
	s := &balancer.Service{Name: "web", Ports: []balancer.Port{{Port: 80, Protocol: balancer.TCP, TargetPort: 8080}}}
	s.Forward, s.NoEndpoints = balancer.NATForward, balancer.RejectClients
	s.Endpoints = []balancer.Endpoint{{Address: addrOf("10.1.0.2"), Weight: 1}, {Address: addrOf("fd01::2"), Weight: 1}}
	edit(s)
	var in balancer.Inputs
	for _, text := range vips {
		a := addrOf(text)
		s.VIPs = append(s.VIPs, a)
		in.VIPs = in.VIPs.Set(a, &balancer.VIP{Addr: a, Given: []string{"withdraw"}, VIPPolicy: balancer.VIPPolicy{Withdraw: balancer.WithdrawNoEndpoint}})
	}
	in.Services = in.Services.Set(s.Name, s)
	own, networked, err := h.LocalAddresses(nil)
	must(t, err)
	return new(balancer.Compiler).Next(balancer.Env{
		Local: own, LocalInSubnets: networked,
		Capabilities: balancer.Capabilities{Protocols: []balancer.Protocol{balancer.TCP}, Forwards: []balancer.Forward{balancer.NATForward}, DropsClients: true},
	}, in, time.Now())
}

// TestWithdrawnOwnAddress withdraws VIPs that are also the host's own addresses. The addresses must
// stay. Clients must not reach a program on the host that listens on the service's port.
func TestWithdrawnOwnAddress(t *testing.T) {
	_, client := network(t)
	ip(t, "addr add 10.96.0.10/32 dev lo")
	t.Cleanup(func() { ip(t, "addr del 10.96.0.10/32 dev lo") })
	h := newHost(t, options(t, xtables.NFT))
	listen(t, 80)
	own := []string{"10.1.0.1", "fd01::1", "10.96.0.10"}
	for _, test := range []struct {
		name string
		edit func(*balancer.Service)
		want outcome
	}{
		{"serving", func(*balancer.Service) {}, open},
		{"reject", func(s *balancer.Service) { s.Endpoints = nil }, refused},
		{"serving again", func(*balancer.Service) {}, open},
		{"drop", func(s *balancer.Service) { s.Endpoints, s.NoEndpoints = nil, balancer.DropClients }, silence},
		{"source ranges", func(s *balancer.Service) {
			s.Endpoints, s.SourceRanges = nil, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
		}, silence},
	} {
		d := withdrawing(t, h, test.edit, own...)
		must(t, h.Prepare(t.Context(), d))
		must(t, h.Finish(t.Context(), d.Frontends))
		for _, a := range own {
			if got := attempt(t, client, net.JoinHostPort(a, "80"), test.want); got != test.want {
				t.Errorf("%s: port 80 of %s: connection = %s, want %s", test.name, a, got, test.want)
			}
		}
	}
}

// TestWithdrawnUntilRemoved withdraws a VIP that vipd has added. The host's own ports at the VIP
// must stay closed until the address is removed, which happens before the frontend is applied.
func TestWithdrawnUntilRemoved(t *testing.T) {
	_, client := network(t)
	client.Sysctl("net.ipv4.ip_forward", "0")
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	listen(t, 80)
	listen(t, 22)
	const vip = "10.96.0.10"
	none := func(s *balancer.Service) { s.Endpoints = nil }
	for range 3 {
		serving := withdrawing(t, h, func(*balancer.Service) {}, vip)
		must(t, h.Prepare(t.Context(), serving))
		must(t, h.Finish(t.Context(), serving.Frontends))
		checkDevice(t, "lo", "127.0.0.1/8", "::1/128", vip+"/32")
		checkAttempt(t, client, vip+":80", open)
		withdrawn := withdrawing(t, h, none, vip)
		if f := withdrawn.Frontends.At(balancer.Key{Addr: addrOf(vip), Port: 80, Proto: balancer.TCP}); !f.Withdrawn {
			t.Fatalf("frontend = %+v, want Withdrawn = true", f)
		}
		closed := desired(frontend(vip+":80", func(f *balancer.Frontend) { f.Backends = nil }))
		must(t, h.Prepare(t.Context(), closed)) // the address must stay, and its port must be closed
		stops := []func(){knock(t, client, vip+":22"), knock(t, client, vip+":80")}
		must(t, h.Prepare(t.Context(), withdrawn))
		must(t, h.Finish(t.Context(), serving.Frontends)) // simulates that the frontend could not be applied
		checkDevice(t, "lo", "127.0.0.1/8", "::1/128")
		must(t, h.Prepare(t.Context(), withdrawn))
		must(t, h.Finish(t.Context(), withdrawn.Frontends))
		for _, stop := range stops {
			stop()
		}
		checkIntact(t, h)
	}
}
