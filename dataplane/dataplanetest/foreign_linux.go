package dataplanetest

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"vipd/test/lab"
	"vipd/test/wait"
)

// foreignTools returns the names of the programs that the tests use to create foreign objects.
func foreignTools() []string {
	return []string{"iptables", "ip6tables", "iptables-restore", "ip6tables-restore", "ipset", "nft"}
}

// foreignRules contains rules of other programs. NET is replaced with a network, HOST with an
// address in this network, and SET with the name of an ipset.
const foreignRules = `*filter
:OTHER-IN - [0:0]
:OTHER-FORWARD - [0:0]
:OTHER-EMPTY - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -m comment --comment "kept \"as is\"" -j ACCEPT
-A INPUT -m set --match-set SET src -j OTHER-IN
-A FORWARD -j OTHER-FORWARD
-A OTHER-IN -m conntrack --ctstate NEW -j RETURN
-A OTHER-FORWARD -s NET -p udp -m udp --dport 53 -j ACCEPT
-A OTHER-FORWARD -j RETURN
COMMIT
*nat
:OTHER-NAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j OTHER-NAT
-A OUTPUT -d NET -j OTHER-NAT
-A POSTROUTING -s NET ! -o lo -j MASQUERADE
-A OTHER-NAT -s NET -p tcp -m tcp --dport 4443 -j DNAT --to-destination HOST:443
COMMIT
*mangle
:OTHER-MARK - [0:0]
-A PREROUTING -s NET -j OTHER-MARK
-A OTHER-MARK -j MARK --set-xmark 0x1/0xff
COMMIT
`

// foreignTable is an nftables table of another program.
const foreignTable = `table inet other {
	set peers {
		type ipv4_addr
		elements = { 198.51.100.1, 198.51.100.2 }
	}
	chain input {
		type filter hook input priority 10; policy accept;
		ip saddr @peers tcp dport 2222 drop
	}
}
`

// putForeign adds rules, chains, sets and a table of other programs to the host until the test
// ends. It returns a snapshot of the host's objects that includes them.
func (s *Subject) putForeign(t testing.TB) snapshot {
	t.Helper()
	families := []struct{ family, net, host, set string }{
		{"inet", "198.51.100.0/24", "198.51.100.7", "other4"},
		{"inet6", "2001:db8::/64", "[2001:db8::7]", "other6"},
	}
	for i, f := range families {
		run(t, "ipset", "create", f.set, "hash:net", "family", f.family)
		run(t, "ipset", "add", f.set, f.net)
		pipe(t, strings.NewReplacer("NET", f.net, "HOST", f.host, "SET", f.set).Replace(foreignRules),
			s.tools("-restore")[i], "--noflush", "--wait")
	}
	pipe(t, foreignTable, "nft", "-f", "-")
	t.Cleanup(func() {
		run(t, "nft", "delete", "table", "inet", "other")
		for _, table := range []string{"filter", "nat", "mangle"} {
			s.iptables(t, "-t", table, "-F")
			s.iptables(t, "-t", table, "-X")
		}
		for _, f := range families {
			run(t, "ipset", "destroy", f.set)
		}
	})
	return takeSnapshot(t)
}

// pipe runs a command with input as its standard input.
func pipe(t testing.TB, input, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// testForeign starts a dataplane, makes changes, damages the dataplane, closes it with and without
// keep, and cleans up. Other programs' rules, sets and tables must stay unchanged.
func testForeign(t *testing.T, s *Subject) {
	changes := wait.Soak(30, 100)
	w := layouts()[0].build(t, lab.New(t))
	before := s.putForeign(t)
	r := newStill(t, s, w)
	r.drive()
	web := newService("web", w.vip, endpoints(w.servers...)...)
	web.SourceRanges = append(web.SourceRanges, prefixes("10.0.0.0/8", "fd00::/8")...)
	r.apply(web, newService("empty", vipN(40)))
	sameForeign(t, "after the start", before)
	h := newHistory(8, w.servers, 100, 6, web)
	applyHistory(r, h, changes)
	sameForeign(t, fmt.Sprintf("after %d changes", changes), before)
	if chains := s.ourChains(t, ""); len(chains) > 0 {
		repairs := r.engine.Status().Repairs
		run(t, chains[0].tool, "-w", "-t", chains[0].table, "-F", chains[0].name)
		awaitRepairs(r, repairs)
		sameForeign(t, "after damage was repaired", before)
	}
	r.stop()
	replaceDataplane(r, true)
	sameForeign(t, "after closing and keeping", before)
	r.steer(wait.Scaled(driverProbe))
	r.apply(h.wanted()...)
	checkAllServe(r, 1)
	sameForeign(t, "after taking over", before)
	r.stop()
	if s.Cleanup != nil {
		replaceDataplane(r, true)
		s.Cleanup(t)
		nothingOfOurs(t, "after a cleanup")
		sameForeign(t, "after a cleanup", before)
	}
	replaceDataplane(r, false)
	sameForeign(t, "after closing", before)
	r.steer(wait.Scaled(driverProbe)) // this engine removes the services at the end of the test
}

func replaceDataplane(r *rig, keep bool) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Scaled(closeTime))
	defer cancel()
	if err := r.dp.Close(ctx, keep); err != nil {
		r.Errorf("Close with keep = %v returned the error %v, want nil", keep, err)
	}
	r.dp = r.s.New(r.T)
}
