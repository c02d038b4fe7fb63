package dataplanetest

import (
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// uplinks builds a layout in which the host has two uplinks:
//
//	other --- host --- s1, s2, s3
//	            |
//	          client
//
// The main routing table sends packets for the client through the wrong uplink, "other". The host's
// rules save each connection's uplink in the connection's mark, and route answers by this mark. The
// rules use the whole mark.
func uplinks(t testing.TB, l *lab.Lab) *world {
	w := routed(t, l)
	other := l.Add("other")
	l.Link(w.host, other, "10.9.0.1/24", "10.9.0.2/24", "fd09::1/64", "fd09::2/64")
	for _, f := range []struct{ ip, iptables, net, gateway string }{
		{"-4", "iptables", "10.1.0.0/24", "10.9.0.2"}, {"-6", "ip6tables", "fd01::/64", "fd09::2"},
	} {
		run(t, "ip", f.ip, "route", "del", f.net, "dev", "client")
		run(t, "ip", f.ip, "route", "add", f.net, "via", f.gateway)
		run(t, "ip", f.ip, "route", "add", f.net, "dev", "client", "table", "100")
		// Remove each rule when the test ends, because later tests share the host.
		run(t, "ip", f.ip, "rule", "add", "fwmark", "1", "table", "100")
		t.Cleanup(func() { run(t, "ip", f.ip, "rule", "del", "fwmark", "1", "table", "100") })
		mangle := func(rule ...string) {
			run(t, f.iptables, append([]string{"-t", "mangle", "-A"}, rule...)...)
			t.Cleanup(func() { run(t, f.iptables, append([]string{"-t", "mangle", "-D"}, rule...)...) })
		}
		mangle("PREROUTING", "-i", "client", "-m", "conntrack", "--ctstate", "NEW", "-j", "CONNMARK", "--set-mark", "1")
		mangle("PREROUTING", "!", "-i", "client", "-j", "CONNMARK", "--restore-mark")
		mangle("OUTPUT", "-j", "CONNMARK", "--restore-mark")
	}
	return w
}

// testUplinks runs a service on a host that routes answers by connection marks. vipd's own marks
// must not change the answers' route.
func testUplinks(t *testing.T, s *Subject) {
	r := newRig(t, s, layout{name: "uplinks", build: uplinks}, s.newHost(t))
	r.apply(newService("web", r.w.vip, endpoints(r.w.servers...)...))
	r.each(func(r *rig, key balancer.Key) {
		r.mustAsk(r.w.client, key)
		if key.Proto == balancer.TCP {
			checkStream(r, r.w.client, key, zeros{}, 1<<20)
		}
	})
}
