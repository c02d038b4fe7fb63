package guard

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// blindTool is iptables whose rules can't be listed while blind is set.
type blindTool struct {
	filterTool
	blind *bool
}

func (b blindTool) Prints(ctx context.Context, table, prefix string, chains []string) (map[string]xtables.Print, error) {
	if *b.blind {
		return nil, errors.New("the rules changed while they were listed")
	}
	return b.filterTool.Prints(ctx, table, prefix, chains)
}

// filtering is a guard of one frontend on a host with filters of a variant of iptables. finds counts how often iptables was looked for.
type filtering struct {
	*family
	t       *testing.T
	program string
	blind   bool
	finds   int
}

func filteringWith(t *testing.T, variant xtables.Variant, m dataplane.Needs) *filtering {
	t.Helper()
	lab.Require(t)
	lab.Need(t, "nft", "iptables-nft", "iptables-legacy")
	g := &filtering{t: t, program: "iptables-" + string(variant)}
	o := Options{Mode: m, MasqueradeBit: 14, Variant: variant, Log: slog.New(slog.DiscardHandler)}
	w := newWanted(inet.IPv4, o)
	w.want(frontend("10.96.0.10:80"), 1, false)
	w.want(frontend("10.96.0.10:80"), 1, true)
	g.family = newFamily(w, newAcceptor(inet.IPv4, o))
	find := g.accept.find
	g.accept.find = func(ctx context.Context) (filterTool, error) {
		g.finds++
		tool, err := find(ctx)
		return blindTool{tool, &g.blind}, err
	}
	t.Cleanup(func() {
		g.close()
		nftables(t, "", "flush", "ruleset")
		for _, args := range []string{"-P FORWARD ACCEPT", "-F", "-X"} {
			_ = exec.Command("iptables-legacy", strings.Fields(args)...).Run() // without filters there is nothing to restore
		}
	})
	return g
}

// iptables runs the program of the variant.
func (g *filtering) iptables(args string) string {
	g.t.Helper()
	out, err := exec.Command(g.program, append([]string{"-w"}, strings.Fields(args)...)...).CombinedOutput()
	if err != nil {
		g.t.Fatalf("%s %s: %v\n%s", g.program, args, err, out)
	}
	return string(out)
}

// round makes one round of the engine.
func (g *filtering) round() {
	g.t.Helper()
	if err := errors.Join(g.prepare(g.t.Context()), g.finish(g.t.Context())); err != nil {
		g.t.Fatal(err)
	}
}

// accepts reports whether the rules are there.
func (g *filtering) accepts() bool {
	rules := g.iptables("-S")
	return strings.Contains(rules, "-A VIPD-FORWARD -j ACCEPT") && strings.Contains(rules, "-A FORWARD -m connmark --mark 0x8000/0x8000 -j VIPD-FORWARD")
}

// TestAcceptsInFilters writes rules once there are filters, writes them again after each damage, and removes them with the guard. It
// looks for iptables once.
func TestAcceptsInFilters(t *testing.T) {
	for _, variant := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(string(variant), func(t *testing.T) {
			g := filteringWith(t, variant, dataplane.Needs{Forward: true})
			if variant == xtables.NFT {
				g.round()
				if g.finds > 0 {
					t.Fatal("iptables was looked for without filters")
				}
			}
			g.iptables("-P FORWARD DROP")
			g.noticed("filters")
			g.resync()
			g.round()
			if !g.accepts() || g.finds != 1 {
				t.Fatalf("after %d finds of iptables there are\n%s", g.finds, g.iptables("-S"))
			}
			for _, damage := range []string{"-F", "-R VIPD-FORWARD 1 -j DROP", "-D FORWARD -m connmark --mark 0x8000/0x8000 -j VIPD-FORWARD", "-F VIPD-INPUT"} {
				g.iptables(damage)
				g.noticed(damage)
				g.resync()
				g.round()
				if !g.accepts() {
					t.Fatalf("after %s there are\n%s", damage, g.iptables("-S"))
				}
			}
			g.iptables("-A INPUT -s 192.0.2.1 -j ACCEPT")
			g.want(frontend("10.96.0.10:80"), -1, false)
			g.want(frontend("10.96.0.10:80"), -1, true)
			g.round()
			if rules := g.iptables("-S"); strings.Contains(rules, "VIPD") || !strings.Contains(rules, "192.0.2.1") {
				t.Errorf("at the end there are\n%s", rules)
			}
		})
	}
}

// noticed waits until a change of iptables is found.
func (g *filtering) noticed(change string) {
	g.t.Helper()
	if !g.ready {
		return
	}
	lab.Eventually(g.t, 10*time.Second, change+" to be noticed", func() error {
		if reason, err := g.intact(g.t.Context()); reason == "" || err != nil {
			return errors.Join(errors.New("it takes itself for intact"), err)
		}
		return nil
	})
}

// TestAcceptsAgainWhatWasNotProved: rules that could not be looked at after they were written are a problem, and are written again.
func TestAcceptsAgainWhatWasNotProved(t *testing.T) {
	g := filteringWith(t, xtables.NFT, dataplane.Needs{Forward: true})
	g.iptables("-P FORWARD DROP")
	g.blind = true
	g.round()
	if p := g.problems(); len(p) != 1 || p[0].Severity != balancer.SeverityWarning || !strings.Contains(p[0].Text, "changed while they were listed") {
		t.Errorf("got the problems %v", p)
	}
	g.iptables("-F") // a firewall is loaded again
	g.iptables("-X")
	g.blind = false
	lab.Eventually(t, 10*time.Second, "the rules", func() error {
		if !g.retry(t.Context()) {
			return errors.New("it was not tried again")
		}
		return nil
	})
	if !g.accepts() || len(g.problems()) > 0 {
		t.Errorf("got the problems %v, and\n%s", g.problems(), g.iptables("-S"))
	}
}

// TestDriftBesideABlindAcceptor: if iptables' filters can't be read, what is missing of the table is noticed.
func TestDriftBesideABlindAcceptor(t *testing.T) {
	g := filteringWith(t, xtables.NFT, dataplane.Needs{Forward: true})
	g.iptables("-P FORWARD DROP")
	g.round()
	g.blind = true
	g.iptables("-A INPUT -s 192.0.2.1")
	nftables(t, "delete table ip vipd-guard", "-f", "-")
	if reason, err := g.intact(t.Context()); reason == "" || err == nil {
		t.Errorf("got %q, %v; want what is missing, and the error", reason, err)
	}
}

// TestFiltersWithoutIptables: if there is no iptables to accept clients, a policy DROP is a problem in each mode.
func TestFiltersWithoutIptables(t *testing.T) {
	for _, m := range someModes() {
		g := filteringWith(t, xtables.NFT, m)
		g.iptables("-P FORWARD DROP")
		g.accept.find = func(context.Context) (filterTool, error) {
			return nil, &xtables.UnsupportedError{Need: "iptables"}
		}
		g.round()
		if all := g.problems(); len(all) != 1 || !strings.Contains(all[0].Text, "policy of FORWARD or INPUT is DROP") {
			t.Errorf("%+v: got %v", m, all)
		}
		if reason, err := g.intact(t.Context()); reason != "" || err != nil {
			t.Errorf("%+v: it takes itself for damaged: %q, %v", m, reason, err)
		}
	}
}
