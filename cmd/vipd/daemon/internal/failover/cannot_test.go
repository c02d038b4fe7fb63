package failover

import (
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/model"
)

// TestCannotByRequire tests VIPs whose services have different requirements. Each service must be
// checked only against its own requirement.
func TestCannotByRequire(t *testing.T) {
	const node, endpoint, local = balancer.RequireNode, balancer.RequireEndpoint, balancer.RequireLocal
	vip, own := netip.MustParseAddr("192.168.1.100"), netip.MustParseAddr("192.168.1.11")
	here, remote := netip.AddrPortFrom(own, 80), netip.MustParseAddrPort("192.168.1.12:80")
	for _, c := range []struct {
		name     string
		web, api []balancer.Backend
		unready  string
		require  balancer.Require
		want     string
	}{
		{"all is well", []balancer.Backend{{Addr: remote, State: balancer.Active}}, []balancer.Backend{{Addr: here, State: balancer.Active}}, "", endpoint, ""},
		{"one of two is down", []balancer.Backend{{Addr: here, State: balancer.Down}, {Addr: remote, State: balancer.Active}}, []balancer.Backend{{Addr: remote, State: balancer.Active}}, "", endpoint, ""},
		{"a service is down", []balancer.Backend{{Addr: remote, State: balancer.Active}}, []balancer.Backend{{Addr: here, State: balancer.Down}}, "", endpoint, "service api has no usable endpoint"},
		{"both are down", []balancer.Backend{{Addr: remote, State: balancer.Down}}, []balancer.Backend{{Addr: here, State: balancer.Down}}, "", endpoint, "service api has no usable endpoint"},
		{"nothing is required", []balancer.Backend{{Addr: remote, State: balancer.Down}}, nil, "", node, ""},
		{"both are here", []balancer.Backend{{Addr: here, State: balancer.Active}}, []balancer.Backend{{Addr: here, State: balancer.Active}}, "", local, ""},
		{"one is elsewhere", []balancer.Backend{{Addr: here, State: balancer.Active}}, []balancer.Backend{{Addr: remote, State: balancer.Active}}, "", local, "service api has no usable endpoint on this host"},
		{"vipd starts", []balancer.Backend{{Addr: here, State: balancer.Active}}, nil, "the first checks run", node, "vipd is not ready: the first checks run"},
	} {
		s := &model.State{Env: balancer.Env{Local: []netip.Addr{own}}}
		add := func(service balancer.Name, addr netip.Addr, port uint16, backends []balancer.Backend) {
			k := balancer.Key{Addr: addr, Port: balancer.PortRange(port), Proto: balancer.TCP}
			s.Desired.Frontends = s.Desired.Frontends.Set(k, &balancer.Frontend{Key: k, Service: service, Backends: backends})
		}
		add("web", vip, 80, c.web)
		if c.api != nil {
			add("api", vip, 81, c.api)
		}
		add("other", vip.Next(), 80, nil)
		v := &Serving{State: s}
		if c.unready != "" {
			v.Unready = []string{c.unready}
		}
		for range 20 { // the reason must not vary, because each new text is written to etcd
			if got := blockReason(v, vip, c.require); got != c.want {
				t.Fatalf("%s: cannot() = %q, want %q", c.name, got, c.want)
			}
		}
	}
}
