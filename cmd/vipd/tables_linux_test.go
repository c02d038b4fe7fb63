package main

import (
	"context"
	"io"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/modes"
	"vipd/cmd/vipd/daemon"
	"vipd/test/lab"
	"vipd/test/wait"
)

// This is the state that an earlier version in iptables mode left on a host without nf_tables. Its
// guard in iptables and ipsets accepts only translated connections, and a rule sends the VIP's
// connections to an endpoint that no longer exists.
const (
	formerSets = `create vipd-held4 hash:ip
create vipd-served4 hash:ip,port
create vipd-direct4 hash:ip,port
add vipd-held4 10.96.0.10
add vipd-served4 10.96.0.10,tcp:80
`
	formerRules = `*filter
:VIPD-HELD - [0:0]
:VIPD-GUARD - [0:0]
-A VIPD-HELD -d 10.96.0.10/32 -m conntrack --ctstate NEW,UNTRACKED -g VIPD-GUARD
-A VIPD-GUARD -m set ! --match-set vipd-held4 dst -j RETURN
-A VIPD-GUARD -m conntrack ! --ctstate DNAT -m set --match-set vipd-served4 dst,dst -j DROP
-A VIPD-GUARD -j REJECT
-I INPUT 1 -j VIPD-HELD
COMMIT
*raw
:VIPD-UNTRACKED - [0:0]
-A VIPD-UNTRACKED -m set --match-set vipd-direct4 dst,dst -j CT --notrack
-I PREROUTING 1 -j VIPD-UNTRACKED
COMMIT
*nat
:VIPD-POSTROUTING - [0:0]
:VIPD-MASQUERADE - [0:0]
-A VIPD-POSTROUTING -m mark --mark 0x4000/0x4000 -g VIPD-MASQUERADE
-A VIPD-MASQUERADE -j MASQUERADE
-I POSTROUTING 1 -j VIPD-POSTROUTING
:VIPD-SERVICES - [0:0]
-A VIPD-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.2.0.99:8080
-I PREROUTING 1 -j VIPD-SERVICES
COMMIT
`
)

// addFormerRules adds the rules that an earlier version left to the host.
func (g *gateway) addFormerRules() {
	g.t.Helper()
	for _, c := range []struct{ program, input string }{{"ipset restore", formerSets}, {"iptables-legacy-restore --noflush", formerRules}} {
		words := strings.Fields(c.program)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdin = strings.NewReader(c.input)
		if out, err := cmd.CombinedOutput(); err != nil {
			g.t.Fatalf("%s: %v\n%s", c.program, err, out)
		}
	}
}

// breakTables makes trials of nf_tables fail until the test ends, as on a kernel that lacks
// features. Another program owns the tables that a trial needs.
func (g *gateway) breakTables() {
	g.t.Helper()
	names := []string{"vipd-guard-trial", "vipd-redirect-trial"}
	owner := exec.Command("nft", "-i")
	in, err := owner.StdinPipe()
	if err == nil {
		err = owner.Start()
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = in.Close(); _ = owner.Wait() })
	for _, name := range names {
		for _, family := range []string{"ip", "ip6"} {
			if _, err := io.WriteString(in, "add table "+family+" "+name+" { flags owner; }\n"); err != nil {
				g.t.Fatal(err)
			}
		}
	}
	wait.For(g.t, wait.Patience, "tables of another program", func() bool {
		return strings.Count(g.Host().Exec("nft", "list", "tables"), "-trial") == 2*len(names)
	})
}

// formerState returns the state of iptables and ipsets.
func (g *gateway) formerState() string { return g.rules() + g.Host().Exec("ipset", "list", "-n") }

// TestUpgradeWithoutTables upgrades vipd on a host whose nf_tables can't hold the guard. The new
// version must serve in userspace mode, report the reason, and remove the earlier version's
// iptables rules and ipsets.
func TestUpgradeWithoutTables(t *testing.T) {
	g := newGateway(t)
	lab.Need(t, "nft", "iptables-legacy", "ipset")
	g.addFormerRules()
	g.breakTables()
	g.write(strings.Replace(settings("iptables", "legacy"), "strict_mode = true", "strict_mode = false", 1), 0, 1)
	g.start()
	s := g.status()
	if s.Mode.InUse != "userspace" || !s.Mode.Fallback || !strings.Contains(s.Mode.Reason, "not iptables, ipvs, nftables: nf_tables can't hold vipd's rules for ipv4 here") {
		t.Errorf("mode = %+v, want userspace and the reason", s.Mode)
	}
	if !strings.HasPrefix(s.Mode.Detail, "bind, because ") {
		t.Errorf("detail = %q, want bind and the reason", s.Mode.Detail)
	}
	wait.For(t, wait.Patience, "the predecessor's rules to be removed", func() bool {
		return !strings.Contains(g.formerState(), "VIPD-") && !strings.Contains(g.formerState(), "vipd-held4")
	})
	for _, from := range []*lab.NS{g.client, g.Host()} {
		if got := g.servers(from); !slices.Equal(got, []string{"s1", "s2"}) {
			t.Errorf("servers that answered %s = %v, want both servers", from.Name, got)
		}
	}
	text := ""
	for _, p := range g.status().Problems {
		text += p.Text + "\n"
	}
	for _, want := range []string{"userspace mode serves instead of iptables", "addresses that vipd holds answer on every port"} {
		if !strings.Contains(text, want) {
			t.Errorf("no problem contains %q; problems =\n%s", want, text)
		}
	}
}

// TestStrictModeWithoutTables starts vipd with strict_mode on a host whose nf_tables can't hold the
// guard. vipd must refuse to start, and the earlier version's rules must stay.
func TestStrictModeWithoutTables(t *testing.T) {
	g := newGateway(t)
	lab.Need(t, "nft", "iptables-legacy", "ipset")
	t.Cleanup(func() { g.Host().Exec(g.vipctl, "cleanup", "--config", g.file) })
	g.addFormerRules()
	g.breakTables()
	before := g.formerState()
	for _, mode := range []string{"iptables", "nftables"} {
		g.write(settings(mode, "legacy"), 0, 1)
		d, err := daemon.New(daemon.Options{ConfigFile: g.file, Log: slog.New(slog.DiscardHandler), Modes: modes.All()})
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_ = d.Run(ctx)
			cancel()
			t.Fatalf("vipd starts in %s mode, want an error", mode)
		}
		if want := "mode " + mode + " is not usable here, and strict_mode forbids another mode: nf_tables can't hold vipd's rules for ipv4 here"; !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
	if after := g.formerState(); after != before {
		t.Errorf("before vipd: rules =\n%s\nafterwards =\n%s\nwant no change", before, after)
	}
}
