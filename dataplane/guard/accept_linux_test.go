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

// blindTool is an iptables tool whose listing of rules fails while blind is true.
type blindTool struct {
	filterTool
	blind *bool
}

func (b blindTool) ChainHashes(ctx context.Context, table, prefix string, chains []string) (map[string]xtables.ChainHash, error) {
	if *b.blind {
		return nil, errors.New("the rules changed while they were listed")
	}
	return b.filterTool.ChainHashes(ctx, table, prefix, chains)
}

// filtering is a guard with a single frontend, on a host that has filters of one iptables variant.
// finds counts the searches for iptables programs.
type filtering struct {
	*familyGuard
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
	g.familyGuard = newFamily(w, newAcceptor(inet.IPv4, o))
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
			_ = exec.Command("iptables-legacy", strings.Fields(args)...).Run() // an error means that there are no filters to reset
		}
	})
	return g
}

// iptables runs the variant's iptables program, and returns the output.
func (g *filtering) iptables(args string) string {
	g.t.Helper()
	out, err := exec.Command(g.program, append([]string{"-w"}, strings.Fields(args)...)...).CombinedOutput()
	if err != nil {
		g.t.Fatalf("%s %s: %v\n%s", g.program, args, err, out)
	}
	return string(out)
}

func (g *filtering) round() {
	g.t.Helper()
	if err := errors.Join(g.prepare(g.t.Context()), g.finish(g.t.Context())); err != nil {
		g.t.Fatal(err)
	}
}

// accepts reports whether iptables contains vipd's rules.
func (g *filtering) accepts() bool {
	rules := g.iptables("-S")
	return strings.Contains(rules, "-A VIPD-FORWARD -j ACCEPT") && strings.Contains(rules, "-A FORWARD -m connmark --mark 0x8000/0x8000 -j VIPD-FORWARD")
}

// TestAcceptsInFilters adds filters, damages vipd's rules in iptables, and withdraws the frontend.
// vipd must write, repair and remove its rules, with a single search for the iptables programs.
func TestAcceptsInFilters(t *testing.T) {
	for _, variant := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(string(variant), func(t *testing.T) {
			g := filteringWith(t, variant, dataplane.Needs{Forward: true})
			if variant == xtables.NFT {
				g.round()
				if g.finds > 0 {
					t.Fatal("searches for iptables without filters > 0, want 0")
				}
			}
			g.iptables("-P FORWARD DROP")
			g.noticed("filters")
			g.resync()
			g.round()
			if !g.accepts() || g.finds != 1 {
				t.Fatalf("after %d searches for iptables, rules =\n%[2]s\nwant vipd's rules after one search", g.finds, g.iptables("-S"))
			}
			for _, damage := range []string{"-F", "-R VIPD-FORWARD 1 -j DROP", "-D FORWARD -m connmark --mark 0x8000/0x8000 -j VIPD-FORWARD", "-F VIPD-INPUT"} {
				g.iptables(damage)
				g.noticed(damage)
				g.resync()
				g.round()
				if !g.accepts() {
					t.Fatalf("rules after %s =\n%s\nwant vipd's rules", damage, g.iptables("-S"))
				}
			}
			g.iptables("-A INPUT -s 192.0.2.1 -j ACCEPT")
			g.want(frontend("10.96.0.10:80"), -1, false)
			g.want(frontend("10.96.0.10:80"), -1, true)
			g.round()
			if rules := g.iptables("-S"); strings.Contains(rules, "VIPD") || !strings.Contains(rules, "192.0.2.1") {
				t.Errorf("rules after the last round =\n%s\nwant only the other program's rule", rules)
			}
		})
	}
}

// noticed waits until intact reports a change to iptables.
func (g *filtering) noticed(change string) {
	g.t.Helper()
	if !g.ready {
		return
	}
	lab.Eventually(g.t, 10*time.Second, change+" to be noticed", func() error {
		if reason, err := g.intact(g.t.Context()); reason == "" || err != nil {
			return errors.Join(errors.New("the change was not reported"), err)
		}
		return nil
	})
}

// TestAcceptsAgainWhatWasNotProved makes the check of newly written rules fail. The guard must
// report this as a problem, and must write the rules again.
func TestAcceptsAgainWhatWasNotProved(t *testing.T) {
	g := filteringWith(t, xtables.NFT, dataplane.Needs{Forward: true})
	g.iptables("-P FORWARD DROP")
	g.blind = true
	g.round()
	if p := g.problems(); len(p) != 1 || p[0].Severity != balancer.SeverityWarning || !strings.Contains(p[0].Text, "changed while they were listed") {
		t.Errorf("problems = %v, want one warning", p)
	}
	g.iptables("-F") // like a firewall that reloads its rules
	g.iptables("-X")
	g.blind = false
	lab.Eventually(t, 10*time.Second, "the rules", func() error {
		if !g.retry(t.Context()) {
			return errors.New("there was no retry")
		}
		return nil
	})
	if !g.accepts() || len(g.problems()) > 0 {
		t.Errorf("problems = %v, want none; rules in iptables =\n%s\nwant vipd's rules", g.problems(), g.iptables("-S"))
	}
}

// TestDriftBesideABlindAcceptor deletes the guard's table while the iptables filters can't be read.
// intact must report the missing table, and must also return the error about the filters.
func TestDriftBesideABlindAcceptor(t *testing.T) {
	g := filteringWith(t, xtables.NFT, dataplane.Needs{Forward: true})
	g.iptables("-P FORWARD DROP")
	g.round()
	g.blind = true
	g.iptables("-A INPUT -s 192.0.2.1")
	nftables(t, "delete table ip vipd-guard", "-f", "-")
	if reason, err := g.intact(t.Context()); reason == "" || err == nil {
		t.Errorf("intact = %q, %v; want a reason about the missing table, and an error about the filters", reason, err)
	}
}

// TestFiltersWithoutIptables sets the policy DROP on a host without the iptables programs. The
// guard must report a problem in each mode.
func TestFiltersWithoutIptables(t *testing.T) {
	for _, m := range someModes() {
		g := filteringWith(t, xtables.NFT, m)
		g.iptables("-P FORWARD DROP")
		g.accept.find = func(context.Context) (filterTool, error) {
			return nil, &xtables.UnsupportedError{Need: "iptables"}
		}
		g.round()
		if all := g.problems(); len(all) != 1 || !strings.Contains(all[0].Text, "policy of FORWARD or INPUT is DROP") {
			t.Errorf("%+v: problems = %v, want one problem about the policy DROP", m, all)
		}
		if reason, err := g.intact(t.Context()); reason != "" || err != nil {
			t.Errorf("%+v: intact = %q, %v; want no reason", m, reason, err)
		}
	}
}

// TestGuardLeavesFiltersOfNFT loads a table named "filter" with "nft -f". The table contains vipd's
// chains in a form that iptables can't read. A round without services must succeed, and must leave
// the table unchanged.
func TestGuardLeavesFiltersOfNFT(t *testing.T) {
	g := filteringWith(t, xtables.NFT, dataplane.Needs{Forward: true})
	g.want(frontend("10.96.0.10:80"), -1, false)
	g.want(frontend("10.96.0.10:80"), -1, true)
	nftables(t, `table ip filter {
		chain VIPD-FORWARD {
			accept
		}
		chain FORWARD {
			type filter hook forward priority 0
			ct mark & 0x8000 == 0x8000 counter jump VIPD-FORWARD
		}
	}`, "-f", "-")
	before := nftables(t, "", "list", "ruleset")
	g.round()
	if !g.formerChecked {
		t.Error("formerChecked = false, want true")
	}
	if after := nftables(t, "", "list", "ruleset"); after != before {
		t.Errorf("rules after a round =\n%s\nwant\n%s", after, before)
	}
}
