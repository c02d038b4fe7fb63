package dataplanetest

import (
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// testSNAT sets snat to "always" and to "never". Servers must see the host's address with "always",
// and the client's address with "never".
func testSNAT(t *testing.T, s *Subject) {
	routed, host := layouts()[0], s.newHost(t)
	for _, lay := range []layout{
		{name: "always", build: routed.build, snat: balancer.AlwaysSNAT},
		{name: "never", build: routed.build, snat: balancer.NeverSNAT, noHairpin: true},
		{name: "never-same-link", build: oneArmThroughHost, snat: balancer.NeverSNAT, noHairpin: true},
	} {
		s.sub(t, lay.name, func(t *testing.T) {
			r := newRig(t, s, lay, host)
			r.apply(roundRobinService(r, lay.snat))
			checkEveryClientKind(r, lay)
		})
	}
}

// oneArmThroughHost builds the layout one-arm, but the servers route packets for the clients
// through the host.
func oneArmThroughHost(t testing.TB, l *lab.Lab) *world {
	w := oneArm(t, l)
	w.detour = true
	for _, s := range w.servers {
		s.ns.Sysctl("net.ipv6.conf.lan.accept_redirects", "0") // otherwise ICMP redirects from the host would make servers send directly to the clients
		for _, c := range w.clients {
			s.ns.Route(c[0].String()+"/32", w.node[0].String())
			s.ns.Route(c[1].String()+"/128", w.node[1].String())
		}
	}
	return w
}
