package host

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

func snat(s balancer.SNAT) func(*balancer.Frontend) {
	return func(f *balancer.Frontend) { f.SNAT = s }
}

// TestForwardingSysctls switches between modes that need forwarding and modes that do not. Sysctls
// and masquerading rules must follow the mode. Cleanup must restore the sysctls.
func TestForwardingSysctls(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	both := []*balancer.Frontend{frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80")}
	apply(t, h, both...)
	checkSysctl(t, l, forward4, "0")
	rules := func() string { return l.Host().Exec("nft", "list", "table", "ip", "vipd-guard") }
	if out := rules(); strings.Contains(out, "masquerade") {
		t.Fatalf("rules in a mode without forwarding =\n%s\nwant no masquerading", out)
	}
	h.SetMode(dataplane.Needs{Forward: true})
	apply(t, h, both...)
	checkSysctl(t, l, forward4, "1")
	checkSysctl(t, l, forward6, "0")
	if p := fmt.Sprint(h.Problems()); !strings.Contains(p, "sysctl -w net.ipv6.conf.all.forwarding=1") || !strings.Contains(p, "router advertisements") {
		t.Fatalf("problems = %v, want a problem about IPv6 forwarding", p)
	}
	if out := rules(); strings.Count(out, "masquerade fully-random") != 3 || !strings.Contains(out, `"client" . "client"`) {
		t.Fatalf("rules =\n%s\nwant three masquerading rules, and an interface pair client and client", out)
	}
	checkIntact(t, h)
	if repairs := h.Repaired(); len(repairs) > 0 {
		t.Errorf("without a change: Repaired = %v, want no repairs", repairs)
	}
	if _, err := os.Stat("/proc/sys/net/ipv6/conf/lo/force_forwarding"); err == nil {
		l.Host().Sysctl(forceForwarding6("client"), "1")
		checkIntact(t, h)
		if p := h.Problems(); len(p) != 0 {
			t.Errorf("while a device forwards IPv6: problems = %v, want none", p)
		}
	}
	l.Host().Sysctl(forward6, "1") // this is the command that the problem recommends
	for range 2 {
		l.Host().Sysctl(forward4, "0") // as another program might do
		checkIntact(t, h)
		checkSysctl(t, l, forward4, "1")
		if repairs := h.Repaired(); !slices.Equal(repairs, []string{"sysctl net.ipv4.ip_forward was 0"}) {
			t.Errorf("Repaired = %q, want the repair of ip_forward", repairs)
		}
	}
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems = %v, want none", p)
	}
	h.SetMode(dataplane.Needs{})
	apply(t, h, both...)
	if out := rules(); strings.Contains(out, "masquerade") || strings.Contains(out, `"client"`) {
		t.Fatalf("rules after the mode change =\n%s\nwant no masquerading and no interface pair", out)
	}
	checkIntact(t, h)
	finishNothing(t, h)
	checkSysctl(t, l, forward4, "1") // the sysctl must stay until Cleanup
	must(t, h.Close())
	_, err := Cleanup(t.Context(), o, false)
	must(t, err)
	checkSysctl(t, l, forward4, "0")

	o.ManageSysctls, o.Mode.Forward, o.StrictARP = false, true, false
	h = newHost(t, o)
	apply(t, h, both...)
	checkSysctl(t, l, forward4, "0")
	if p := fmt.Sprint(h.Problems()); !strings.Contains(p, "sysctl -w net.ipv4.ip_forward=1") {
		t.Fatalf("problems = %v, want a problem about IPv4 forwarding", p)
	}
}

// oneArm returns the interfaces for which the guard has an interface pair: a connection that
// arrives and leaves on such an interface gets the node's address as its source.
func oneArm(t *testing.T, l *lab.Lab) []string {
	t.Helper()
	var names []string
	for _, pair := range samePair.FindAllStringSubmatch(l.Host().Exec("nft", "list", "set", "ip", "vipd-guard", "onearm"), -1) {
		if pair[1] == pair[2] {
			names = append(names, pair[1])
		}
	}
	slices.Sort(names)
	return names
}

// TestInterfaceChanges adds, renames and removes interfaces. The guard must update its rules
// without reporting these changes as drift.
func TestInterfaceChanges(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface, o.Mode.Forward = "lo", true
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	before := oneArm(t, l)
	if !slices.Contains(before, "client") || slices.Contains(before, "lo") {
		t.Fatalf("interfaces with rules = %q, want client without lo", before)
	}
	for _, c := range []struct {
		do   string
		want []string
	}{
		{"link add web0 type veth peer name web1", []string{"web0", "web1"}},
		{"link set web1 name db1", []string{"db1", "web0"}},
		{"link add br0 type bridge", []string{"br0", "db1", "web0"}},
		{"link set web0 master br0", []string{"br0", "db1"}},
		{"link set web0 nomaster", []string{"br0", "db1", "web0"}},
		{"link del br0", []string{"db1", "web0"}},
		{"link set web0 name odd+", []string{"db1", "odd+"}},
		{"link del db1", nil},
	} {
		ip(t, c.do)
		want := slices.Sorted(slices.Values(slices.Concat(before, c.want)))
		lab.Eventually(t, deadlineIn, "rules for "+fmt.Sprint(want)+" after "+c.do, func() error {
			checkIntact(t, h)
			if got := oneArm(t, l); !slices.Equal(got, want) {
				return fmt.Errorf("interfaces = %q", got)
			}
			return nil
		})
	}
}

var samePair = regexp.MustCompile(`"([^"]+)" \. "([^"]+)"`)

// TestMarksOfOthers sets additional bits in the marks of a service's packets and connections, as
// another program might. The guard must preserve these bits.
func TestMarksOfOthers(t *testing.T) {
	l, client := network(t)
	server := l.Add("server")
	l.Link(l.Host(), server, "10.2.0.1/24", "10.2.0.2/24")
	o := options(t, xtables.NFT)
	o.Interface, o.Mode.Forward = "lo", true
	h := newHost(t, o)
	must(t, os.WriteFile("/run/other.nft", []byte(`table ip other {
	chain to_server { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 udp dport 81 dnat to 10.2.0.2:8081; }
	chain marking { type filter hook prerouting priority mangle; meta mark set meta mark or 0x2; ct mark set ct mark or 0x1; }
	chain leaving { type filter hook postrouting priority mangle; udp dport 8081 meta mark 0x2 counter; }
}`), 0o600))
	l.Host().Exec("nft", "-f", "/run/other.nft")
	t.Cleanup(func() { l.Host().Exec("nft", "delete", "table", "ip", "other") })
	f := frontend("10.96.0.10:81", snat(balancer.AlwaysSNAT))
	f.Proto = balancer.UDP
	apply(t, h, f)
	server.Echo("udp", "server", netip.MustParseAddrPort("10.2.0.2:8081"))
	c, err := client.Dial(t.Context(), "udp", "10.96.0.10:81")
	must(t, err)
	defer func() { _ = c.Close() }()
	if a, err := lab.Ask(c); err != nil || a.Client.Addr() != addrOf("10.2.0.1") {
		t.Errorf("client address that the server sees = %v, %v; want 10.2.0.1", a.Client, err)
	}
	if got := l.Host().Exec("nft", "list", "chain", "ip", "other", "leaving"); strings.Contains(got, "packets 0 ") {
		t.Errorf("packets with only the mark 0x2 = 0, want at least 1:\n%s", got)
	}
	for _, got := range connectionMarks(t, "10.96.0.10", 81) {
		if want := uint32(0x1 | 0x8000 | 0x4000); got != want {
			t.Errorf("the connection's mark = %#x, want %#x", got, want)
		}
	}
}
