package dataplanetest

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// tools returns the subject's iptables programs for IPv4 and IPv6. suffix may be "", "-save" or
// "-restore".
func (s *Subject) tools(suffix string) [2]string {
	backend := ""
	if s.Backend != "" {
		backend = "-" + s.Backend
	}
	return [2]string{"iptables" + backend + suffix, "ip6tables" + backend + suffix}
}

// iptables runs a command with the subject's iptables on the host, for both families.
func (s *Subject) iptables(t testing.TB, args ...string) {
	t.Helper()
	for _, tool := range s.tools("") {
		run(t, tool, append([]string{"-w"}, args...)...)
	}
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	var stderr strings.Builder // used only in the failure text, because it may contain warnings, for example about tables of another backend
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, stderr.String())
	}
	return string(out)
}

// testPolicyDrop serves clients on a host whose firewall policies are DROP. Each kind of client
// must be served, and the firewall must still drop all other packets.
func testPolicyDrop(t *testing.T, s *Subject) {
	lay := layouts()[0]
	r := newStill(t, s, lay.build(t, lab.New(t)))
	r.w.host.Sysctl("net.ipv4.ip_forward", "1") // only the firewall's policy may prevent forwarding
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		r.w.host.Echo(string(proto), "host", netip.AddrPortFrom(netip.IPv6Unspecified(), 81)) // also serves IPv4
	}
	s1 := r.w.servers[0].addr
	others := func(check func(r *rig, key balancer.Key)) {
		r.each(func(r *rig, key balancer.Key) {
			check(r, keyOf(s1.inFamilyOf(key.Addr), targetPort, key.Proto))
			check(r, keyOf(r.w.node.inFamilyOf(key.Addr), 81, key.Proto))
		})
	}
	r.step("before", func(r *rig) { others(func(r *rig, key balancer.Key) { r.mustAsk(r.w.client, key) }) })
	dropByPolicy(r, "INPUT", "FORWARD")
	r.drive()
	r.apply(roundRobinService(r, lay.snat), newService("empty", vipN(40)))
	checkEveryClientKind(r, lay)
	r.step("no-endpoints", func(r *rig) {
		r.each(func(r *rig, key balancer.Key) {
			r.refused(r.w.client, keyOf(vipN(40).inFamilyOf(key.Addr), vipPort, key.Proto))
		})
	})
	r.step("others", func(r *rig) {
		others(func(r *rig, key balancer.Key) { r.ignored(r.w.client, netip.Addr{}, key) })
	})
}

// dropByPolicy makes the host drop packets that no rule of these chains accepts. It adds rules that
// accept neighbor discovery, packets on lo, and, if the dataplane itself connects to servers, their
// replies.
func dropByPolicy(r *rig, chains ...string) {
	set := func(do, policy string) {
		for _, chain := range chains {
			lo := map[string]string{"INPUT": "-i", "OUTPUT": "-o"}[chain]
			if lo != "" {
				r.s.iptables(r, do, chain, lo, "lo", "-j", "ACCEPT")
				run(r, r.s.tools("")[1], "-w", do, chain, "-p", "ipv6-icmp", "-j", "ACCEPT")
			}
			if chain == "INPUT" && !r.caps.KeepsSource {
				r.s.iptables(r, do, chain, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
			}
			r.s.iptables(r, "-P", chain, policy)
		}
	}
	set("-A", "DROP")
	r.Cleanup(func() { set("-D", "ACCEPT") })
}
