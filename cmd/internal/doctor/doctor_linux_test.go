package doctor

import (
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane/failover"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// namespace returns a Host for the current network namespace, with one service and without a
// daemon.
func namespace(t *testing.T) Host {
	h := ThisHost()
	h.Config, h.ConfigFile, h.NoDaemon = config.Default(), "vipd.toml", "no vipd answers"
	h.Modes = []modes.Mode{trialOf(config.IPTablesMode, true, nil)} // trying a real mode takes a second
	k, err := balancer.ParseKey("10.96.0.10:80/tcp")
	if err != nil {
		t.Fatal(err)
	}
	h.Frontends = []Frontend{{Key: k, Service: "web"}}
	h.Recorded = func() ([]balancer.Key, error) { return nil, nil }
	h.Held = func() (map[netip.Addr]string, error) { return nil, nil }
	return h
}

// run runs a command line in the current network namespace.
func run(t *testing.T, words string) {
	t.Helper()
	f := strings.Fields(words)
	if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", words, err, out)
	}
}

// flush removes all nft rules, and all rules in iptables-legacy's filter table.
func flush(t *testing.T) {
	t.Helper()
	for _, words := range []string{
		"nft flush ruleset", "iptables-legacy -F", "iptables-legacy -P FORWARD ACCEPT", "iptables-legacy -X",
	} {
		run(t, words)
	}
}

// find examines a host, and returns a check's findings that contain part.
func find(t *testing.T, h Host, check, part string) []Finding {
	t.Helper()
	return slices.DeleteFunc(Examine(t.Context(), h), func(f Finding) bool { return f.Check != check || !strings.Contains(f.What, part) })
}

// wantFinding requires that the check has exactly one finding that contains part, and that the
// finding has this level. It returns the finding.
func wantFinding(t *testing.T, h Host, check string, level Level, part string) Finding {
	t.Helper()
	found := find(t, h, check, part)
	if len(found) != 1 || found[0].Level != level {
		t.Fatalf("%s: findings = %+v that contain %q, want one finding with level %s; all findings: %+v", check, found, part, level, find(t, h, check, ""))
	}
	return found[0]
}

func TestRealModes(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables", "nft")
	t.Cleanup(func() { flush(t) })
	h := namespace(t)
	h.Config.RunDir = t.TempDir()
	h.Modes = []modes.Mode{mode(t, config.IPTablesMode), mode(t, config.UserspaceMode)}
	for _, m := range h.Modes {
		wantFinding(t, h, "modes", OK, string(m.Name)+" mode works here")
	}
	wantFinding(t, h, "modes", OK, "auto uses iptables mode")
	out, err := exec.Command("iptables-save").Output()
	if err != nil || strings.Contains(string(out), "VIPD") {
		t.Errorf("after the trials: error = %v, rules =\n%s\nwant no rules of vipd", err, out)
	}
	wantFinding(t, namespace(t), "kernel", OK, "the kernel has the matches that rules need: ")
	t.Setenv("PATH", t.TempDir())
	h = namespace(t)
	wantFinding(t, h, "tools", Warning, "iptables is not installed")
}

func mode(t *testing.T, name config.ModeName) modes.Mode {
	t.Helper()
	m, ok := modes.Find(name)
	if !ok {
		t.Fatalf("mode %s is missing on this system", name)
	}
	return m
}

func TestRealBackends(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables-nft", "iptables-legacy", "nft")
	t.Cleanup(func() { flush(t) })
	run(t, "iptables-legacy -P FORWARD DROP")
	run(t, "iptables-legacy -A INPUT -p tcp --dport 9 -j ACCEPT")
	wantFinding(t, namespace(t), "tools", OK, "; vipd uses the legacy backend")
	wantFinding(t, namespace(t), "firewall", OK, "FORWARD of iptables-legacy drops")
	run(t, "iptables-nft -A INPUT -p tcp --dport 9 -j ACCEPT")
	wantFinding(t, namespace(t), "tools", Warning, "other programs also have rules in the legacy tables (iptables, rules: 1), and vipd uses nft")
	run(t, strings.TrimPrefix(wantFinding(t, namespace(t), "firewall", Problem, "FORWARD of iptables-legacy drops packets that no rule accepts, and vipd uses the other").Fix, "$ "))
	if left := find(t, namespace(t), "firewall", "iptables-legacy"); len(left) > 0 {
		t.Errorf("after running the command: finding = %+v, want none", left)
	}
}

// TestRealDropsBefore adds other programs' rules before vipd's jump. Doctor must find the rules
// with the real iptables, and the finding's command must move the jump to the front.
func TestRealDropsBefore(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables-nft", "iptables-legacy", "nft")
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		for _, test := range []struct {
			rule  string
			level Level
		}{
			{"-j DROP", Problem},
			{"-m comment --comment a,b -j REJECT", Problem},
			{"-j BLOCK", Warning},
			{"-p tcp --dport 80 -j REJECT", Warning},
		} {
			run(t, program+" -N VIPD-FORWARD")
			run(t, program+" -N BLOCK")
			run(t, program+" -A BLOCK -s 10.0.0.0/8 -j DROP")
			run(t, program+" -A FORWARD -m connmark --mark 0x8000/0x8000 -j VIPD-FORWARD")
			run(t, program+" -P FORWARD DROP")
			wantFinding(t, namespace(t), "firewall", OK, "FORWARD of "+program+" drops packets that no rule accepts; vipd accepts its own connections there")
			run(t, program+" -I FORWARD "+test.rule)
			if found := find(t, namespace(t), "firewall", "vipd accepts"); len(found) > 0 {
				t.Errorf("%s %s: findings = %+v, want none that says that vipd accepts connections", program, test.rule, found)
			}
			f := wantFinding(t, namespace(t), "firewall", test.level, "in FORWARD of "+program)
			if got := Drops(t.Context(), namespace(t)); !slices.Contains(got, f) {
				t.Errorf("%s %s: Drops() = %+v, want %+v in it", program, test.rule, got, f)
			}
			if out, err := exec.Command("sh", "-ec", f.Fix).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", f.Fix, err, out)
			}
			wantFinding(t, namespace(t), "firewall", OK, "FORWARD of "+program+" drops packets that no rule accepts; vipd accepts its own connections there")
			if got := Drops(t.Context(), namespace(t)); len(got) > 0 {
				t.Errorf("%s %s: after the fix: Drops() = %+v, want none", program, test.rule, got)
			}
			flush(t)
		}
	}
}

// TestRealForeignChains adds another program's chains, which drop packets. Doctor must find the
// chains with the real nft, and the finding's command must fix the cause.
func TestRealForeignChains(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables", "nft")
	t.Cleanup(func() { flush(t) })
	wantFinding(t, namespace(t), "firewall", OK, "no other program's nft table drops packets by default")
	for _, words := range []string{
		"nft add table inet fw",
		"nft add chain inet fw forward { type filter hook forward priority 0; policy drop; }",
		"nft add chain inet fw input { type filter hook input priority 0; }",
		"nft add rule inet fw input tcp dport 22 accept",
	} {
		run(t, words)
	}
	f := wantFinding(t, namespace(t), "firewall", Warning, "the nft chain inet fw forward (hook forward) has the policy drop")
	if found := find(t, namespace(t), "firewall", "fw input"); len(found) > 0 {
		t.Errorf("findings for a chain that accepts everything = %+v, want none", found)
	}
	if !strings.Contains(f.Fix, "0x8000 == 0x8000") { // vipd's bit in the connection mark
		t.Errorf("command = %q, want it to accept only connections with vipd's mark", f.Fix)
	}
	run(t, f.Fix)
	wantFinding(t, namespace(t), "firewall", Note, "the nft chain inet fw forward has the policy drop, but first accepts connections to VIPs")
	run(t, "nft add rule inet fw input counter log reject")
	wantFinding(t, namespace(t), "firewall", Warning, "the nft chain inet fw input (hook input) ends in a rule that drops or rejects all packets")
	run(t, "nft insert rule inet fw input ct status dnat accept")
	wantFinding(t, namespace(t), "firewall", Note, "the nft chain inet fw input ends in a rule that drops or rejects all packets")
}

func TestRealOthers(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables", "nft")
	t.Cleanup(func() { flush(t) })
	run(t, "iptables -t nat -N KUBE-SERVICES")
	run(t, "iptables -t nat -A PREROUTING -j KUBE-SERVICES")
	run(t, "iptables -t nat -A KUBE-SERVICES -d 10.96.0.10 -p tcp -j DNAT --to-destination 192.0.2.1:80")
	wantFinding(t, namespace(t), "others", Note, "kube-proxy")
	f := wantFinding(t, namespace(t), "firewall", Problem, "another program's rule translates connections to 10.96.0.10:80/tcp (web)")
	run(t, f.Fix)
	if left := find(t, namespace(t), "firewall", "translates"); len(left) > 0 {
		t.Errorf("after running the command: finding = %+v, want none", left)
	}
}

// TestRealForeignRules adds other programs' rules. Some prevent connection tracking, translation or
// marks, and the other rules are harmless. Doctor and the daemon's own check must find exactly the
// harmful rules, and the finding's command must remove the rule.
func TestRealForeignRules(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables-nft", "iptables-legacy", "nft")
	t.Cleanup(func() { flush(t) })
	const tracking, translates, marks = "excludes connections to 10.96.0.10:80/tcp (web) from tracking", "translates connections to 10.96.0.10:80/tcp (web) before vipd", "changes marks that vipd uses"
	for _, test := range []struct {
		mode  config.ModeName
		chain string // an nft chain's type, hook and priority, or an iptables table
		rule  string
		level Level // "" means no finding
		what  string
	}{
		{config.NFTablesMode, "filter hook prerouting priority -300", "ip daddr 10.96.0.0/16 notrack", Problem, tracking},
		{config.NFTablesMode, "filter hook prerouting priority -300", "ip saddr 192.0.2.0/24 tcp sport 8080 notrack", Problem, tracking},
		{config.NFTablesMode, "filter hook prerouting priority -300", "iifname eth7 tcp dport { 80, 443 } notrack", Warning, tracking},
		{config.NFTablesMode, "filter hook prerouting priority -300", "ip daddr 10.97.0.0/16 notrack", "", ""},
		{config.NFTablesMode, "filter hook prerouting priority -300", "iifname lo notrack", "", ""},
		{config.NFTablesMode, "filter hook prerouting priority -300", "udp dport 53 notrack", "", ""},
		{config.IPTablesMode, "raw", "PREROUTING -d 10.96.0.0/16 -j CT --notrack", Problem, tracking},
		{config.IPTablesMode, "raw", "PREROUTING -d 10.97.0.0/16 -j CT --notrack", "", ""},
		{config.NFTablesMode, "nat hook prerouting priority -150", "ip daddr 10.96.0.10 tcp dport 80 dnat to 192.0.2.9", Problem, translates},
		{config.NFTablesMode, "nat hook prerouting priority -150", "tcp dport 80 redirect to :8080", Problem, translates},
		{config.NFTablesMode, "nat hook prerouting priority -100", "ip daddr 10.96.0.10 tcp dport 80 dnat to 192.0.2.9", "", ""},
		{config.IPVSMode, "nat hook prerouting priority -100", "ip daddr 10.96.0.10 tcp dport 80 dnat to 192.0.2.9", Problem, translates},
		{config.IPTablesMode, "nat", "PREROUTING -p tcp -m multiport --dports 80,443 -m addrtype --dst-type LOCAL -j DNAT --to-destination 192.0.2.9", Problem, translates},
		{config.IPTablesMode, "nat", "PREROUTING ! -d 10.96.0.10 -p tcp --dport 80 -j DNAT --to-destination 192.0.2.9", "", ""},
		{config.NFTablesMode, "nat", "PREROUTING -d 10.96.0.10 -j DNAT --to-destination 192.0.2.9", "", ""},
		{config.NFTablesMode, "filter hook forward priority 0", "ct mark set 1", Warning, marks},
		{config.NFTablesMode, "filter hook forward priority 0", "ct mark set ct mark and 0xff", Warning, marks},
		{config.NFTablesMode, "filter hook forward priority 0", "ct mark set ct mark or 0x1", "", ""},
		{config.NFTablesMode, "filter hook forward priority 0", "ct mark 0 ct mark set 1", "", ""},
		{config.NFTablesMode, "filter hook prerouting priority -150", "ct mark set 1", "", ""},
		{config.NFTablesMode, "mangle", "FORWARD -j CONNMARK --set-mark 1", Warning, marks},
		{config.NFTablesMode, "mangle", "POSTROUTING -j CONNMARK --save-mark", Warning, marks},
		{config.NFTablesMode, "mangle", "FORWARD -m connmark --mark 0 -j CONNMARK --set-mark 1", "", ""},
		{config.NFTablesMode, "mangle", "FORWARD -j CONNMARK --set-mark 0x1/0xff", "", ""},
		{config.NFTablesMode, "mangle", "PREROUTING -j CONNMARK --set-mark 1", "", ""},
		{config.NFTablesMode, "mangle", "PREROUTING -j CONNMARK --restore-mark", "", ""},
	} {
		h := func() Host {
			h := namespace(t)
			h.Frontends[0].Backends = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:8080")}
			h.Modes = []modes.Mode{trialOf(test.mode, test.mode != config.UserspaceMode, nil)}
			return h
		}
		add := [][]string{strings.Fields("nft add table inet fw"), {"nft", "add chain inet fw c { type " + test.chain + "; }"}, {"nft", "add rule inet fw c " + test.rule}}
		if !strings.Contains(test.chain, "hook") {
			add = [][]string{strings.Fields("iptables-nft -t " + test.chain + " -A " + test.rule), strings.Fields("iptables-legacy -t " + test.chain + " -A " + test.rule)}
		}
		for _, words := range add {
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%q: %v: %s", words, err, out)
			}
		}
		isFinding := func(f Finding) bool {
			return strings.Contains(f.What, "another program's rule") && f.Check == "firewall"
		}
		for _, look := range []func() []Finding{func() []Finding { return Examine(t.Context(), h()) }, func() []Finding { return Drops(t.Context(), h()) }} {
			found := slices.DeleteFunc(look(), func(f Finding) bool { return !isFinding(f) })
			if wanted := test.level != ""; wanted != (len(found) > 0) {
				t.Errorf("%s, %s: %s: findings = %+v, want findings = %v", test.mode, test.chain, test.rule, found, wanted)
			}
			for _, f := range found {
				if f.Level != test.level || !strings.Contains(f.What, test.what) {
					t.Errorf("%s, %s: %s: finding = %+v, want %s: %q", test.mode, test.chain, test.rule, f, test.level, test.what)
				}
			}
		}
		for _, f := range slices.DeleteFunc(Drops(t.Context(), h()), func(f Finding) bool { return !isFinding(f) }) {
			run(t, f.Fix)
		}
		if left := slices.DeleteFunc(Drops(t.Context(), h()), func(f Finding) bool { return !isFinding(f) }); len(left) > 0 {
			t.Errorf("%s, %s: %s: after the command: findings = %+v, want none", test.mode, test.chain, test.rule, left)
		}
		flush(t)
		for _, table := range []string{"raw", "nat", "mangle"} {
			run(t, "iptables-legacy -t "+table+" -F")
		}
	}
}

func TestRealSysctls(t *testing.T) {
	l := lab.New(t)
	client := l.Add("client")
	l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24")
	for _, test := range []struct {
		sysctl, value, part string
		level               Level
	}{
		{"net.ipv4.conf.client.route_localnet", "1", "route_localnet is on for client", Warning},
		{"net.ipv4.conf.all.rp_filter", "1", "rp_filter is strict on all", Note},
	} {
		if found := find(t, namespace(t), "sysctls", test.part); len(found) > 0 {
			t.Errorf("before the change: findings = %+v, want none", found)
		}
		l.Host().Sysctl(test.sysctl, test.value)
		f := wantFinding(t, namespace(t), "sysctls", test.level, test.part)
		if _, err := exec.LookPath("sysctl"); err != nil {
			continue
		}
		run(t, strings.Replace(f.Fix, "sysctl -w", "sysctl -qw", 1))
		if left := find(t, namespace(t), "sysctls", test.part); len(left) > 0 {
			t.Errorf("after %q: findings = %+v, want none", f.Fix, left)
		}
	}
}

// TestRealSockets listens on a service's address and port. The finding must name the program, and
// must not treat this process as vipd.
func TestRealSockets(t *testing.T) {
	l := lab.New(t)
	l.Host().AddAddr("lo", "10.96.0.10/32")
	listener, err := net.Listen("tcp", "10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	h := namespace(t)
	name := strings.TrimSpace(string(must(t, h.ReadFile, "/proc/self/comm")))
	wantFinding(t, h, "sockets", Warning, name+" listens on 10.96.0.10:80/tcp, which service web uses (10.96.0.10:80/tcp)")
	wantFinding(t, h, "traffic", OK, "10.96.0.10 is the host's own (lo)")
	if filepath.Base(name) == "vipd" {
		t.Error("test program is named vipd, want another name")
	}
}

func must(t *testing.T, read func(string) ([]byte, error), path string) []byte {
	t.Helper()
	text, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestVIPElsewhere examines VIPs on a real device, and then adds the VIPs to another host. Doctor
// must report one problem, and only after the other host has the VIPs.
func TestVIPElsewhere(t *testing.T) {
	l := lab.New(t)
	other := l.Add("other")
	l.Link(l.Host(), other, "192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64", "2001:db8::2/64")
	l.Host().AddAddr("other", "192.0.2.10/32")
	h := namespace(t)
	h.Elsewhere = failover.Elsewhere
	h.Held = func() (map[netip.Addr]string, error) {
		return map[netip.Addr]string{netip.MustParseAddr("192.0.2.10"): "other"}, nil
	}
	h.Config.Addresses.Interface = "other"
	h.Frontends = nil
	for _, k := range []string{"192.0.2.10:80/tcp", "[2001:db8::10]:80/tcp"} {
		key, err := balancer.ParseKey(k)
		if err != nil {
			t.Fatal(err)
		}
		h.Frontends = append(h.Frontends, Frontend{Key: key, Service: "web"})
	}
	wantFinding(t, h, "traffic", OK, "192.0.2.10 is held on other")
	wantFinding(t, h, "traffic", OK, "2001:db8::10 is not here yet")
	other.AddAddr("host", "192.0.2.10/32")
	other.AddAddr("host", "2001:db8::10/128")
	const both = "192.0.2.10, 2001:db8::10 are also on another host ("
	var found []Finding
	wait.For(t, 10*time.Second, "the other host's answers", func() bool { // a busy machine may delay the other host's answer
		found = find(t, h, "traffic", both)
		return len(found) > 0
	})
	if len(found) != 1 || found[0].Level != Problem {
		t.Errorf("findings = %+v, want one problem", found)
	}
}

// TestVIPOfAnotherHost examines VIPs on vipd0 that are also addresses of a neighbour. There must be
// a problem that names the device to the neighbour.
func TestVIPOfAnotherHost(t *testing.T) {
	l := lab.New(t)
	other := l.Add("other")
	l.Link(l.Host(), other, "192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64", "2001:db8::2/64")
	h := namespace(t)
	h.Elsewhere, h.Neighbours = failover.Elsewhere, failover.Neighbours
	h.Status = &api.Status{Addresses: []api.Address{
		{Address: "192.0.2.2", Held: "vipd0"}, {Address: "2001:db8::2", Held: "vipd0"}, {Address: "192.0.2.3", Held: "vipd0"},
	}}
	h.Frontends = []Frontend{{Key: balancer.Key{Addr: netip.MustParseAddr("192.0.2.2"), Port: 80, Proto: balancer.TCP}, Service: "web"}}
	var found []Finding
	wait.For(t, 10*time.Second, "the other host's answers", func() bool { // a busy machine may delay the other host's answer
		found = find(t, h, "traffic", "192.0.2.2, 2001:db8::2 are an address of another host (")
		return len(found) > 0
	})
	if len(found) != 1 || found[0].Level != Problem || !strings.Contains(found[0].What, "on other") {
		t.Errorf("findings = %+v, want one problem", found)
	}
}

// TestVIPOnOwnLinks connects two of the host's devices to the same link, so the host answers its
// own probe for a VIP. Doctor must not mistake this answer for another host.
func TestVIPOnOwnLinks(t *testing.T) {
	lab.New(t)
	run(t, "ip link add lan type bridge")
	t.Cleanup(func() { run(t, "ip link delete lan") })
	run(t, "ip link set lan up")
	for _, name := range []string{"eth1", "eth2"} {
		run(t, "ip link add "+name+" type veth peer port-"+name)
		t.Cleanup(func() { run(t, "ip link delete "+name) })
		run(t, "ip link set port-"+name+" master lan up")
		run(t, "ip link set "+name+" up")
	}
	run(t, "ip address add 192.0.2.10/32 dev eth1")
	vip := netip.MustParseAddr("192.0.2.10")
	link, err := net.InterfaceByName("eth1")
	if err != nil {
		t.Fatal(err)
	}
	wait.For(t, wait.Scaled(10*time.Second), "the host to answer itself", func() bool {
		found, err := failover.Probe(t.Context(), link.Index, []netip.Addr{vip}, 300*time.Millisecond)
		return err == nil && found[vip] != nil
	})
	if found, err := failover.Elsewhere(t.Context(), "eth1", []netip.Addr{vip}); len(found) > 0 || err != nil {
		t.Errorf("other hosts = %v, %v, want none", found, err)
	}
}
