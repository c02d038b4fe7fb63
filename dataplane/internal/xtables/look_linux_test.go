package xtables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"vipd/dataplane/internal/inet"
)

// small writes a few of vipd's chains, and a jump to one of them from OUTPUT.
func small(t *testing.T, tool *Tool) model {
	t.Helper()
	groups := []Group{
		{Write: []Chain{{"VIPD-A", []string{"-p udp -j RETURN"}}, {"VIPD-B", []string{"-p tcp -j RETURN", "-p udp -j RETURN"}}, {"VIPD-EMPTY", nil}}},
		{Write: []Chain{{"VIPD-SERVICES", []string{"-p udp -m udp --dport 1001 -g VIPD-A", "-p udp -m udp --dport 1002 -j VIPD-B", "-p udp -j VIPD-B"}}}},
	}
	must(t, tool.Restore(t.Context(), foreignRules))
	if _, err := tool.Write(t.Context(), "nat", groups); err != nil {
		t.Fatal(err)
	}
	join(t, tool, "nat", "OUTPUT", "-j VIPD-SERVICES", "VIPD-SERVICES")
	return modelOf(groups)
}

func modelOf(groups []Group) model {
	m := model{}
	for i := range groups {
		groups[i].applyWrites(m)
	}
	return m
}

// TestCompareNotices damages the table in several ways, and repairs it each time. Compare must
// report each kind of damage.
func TestCompareNotices(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		ctx := t.Context()
		for _, c := range []struct {
			name, damage string
			reason       string // part of the reason that Compare returns
		}{
			{"nothing", "", ""},
			{"all rules of the table are flushed", "-F\n", "VIPD-"},
			{"the table is emptied", "-F\n-X\n", "chains are missing, such as VIPD-A"},
			{"a chain is flushed", "-F VIPD-A\n", "VIPD-A has"},
			{"a chain is gone", "-F VIPD-EMPTY\n-X VIPD-EMPTY\n", "chain VIPD-EMPTY is missing"},
			{"the kernel's chain leads there no more", "-D OUTPUT -j VIPD-SERVICES\n", "VIPD-SERVICES"},
			{"a jump is deleted", "-D VIPD-SERVICES 3\n", "VIPD-"},
			{"a jump leads elsewhere", "-R VIPD-SERVICES 3 -p udp -j VIPD-A\n", "VIPD-"},
			{"a rule is added", "-A VIPD-B -j RETURN\n", "VIPD-B"},
			{"a chain is added", ":VIPD-C - [0:0]\n", "unexpected chain VIPD-C"},
			{"a chain of others is added", ":VIP-C - [0:0]\n-A VIP-C -j FOREIGN\n", ""},
		} {
			m := small(t, tool)
			sizes := m.sizes()
			sizes["VIPD-SERVICES"]++
			if reason, err := tool.Compare(ctx, "nat", prefixed("VIPD-"), sizes); err != nil || reason != "" {
				t.Fatalf("before the change: Compare = %q, %v; want no difference", reason, err)
			}
			before, err := tool.Stamp("nat")
			must(t, err)
			if c.damage != "" {
				must(t, tool.Restore(ctx, "*nat\n"+c.damage+"COMMIT\n"))
			}
			after, err := tool.Stamp("nat")
			must(t, err)
			if changed := after != before; changed != (c.damage != "") && !(tool.Variant() == Legacy && c.name == "a jump leads elsewhere") {
				t.Errorf("%s: stamp changed = %t (%+v, %+v), want a change only after damage", c.name, changed, before, after)
			}
			reason, err := tool.Compare(ctx, "nat", nil, sizes)
			if want := c.reason != "" && !strings.Contains(c.reason, "unexpected"); err != nil || (reason != "") != want {
				t.Errorf("%s: Compare without additional chains = %q, %v; want a reason = %t", c.name, reason, err, want)
			}
			reason, err = tool.Compare(ctx, "nat", prefixed("VIPD-"), sizes)
			if err != nil || (reason == "") != (c.reason == "") || !strings.Contains(reason, c.reason) {
				t.Errorf("%s: Compare = %q, %v; want %q", c.name, reason, err, c.reason)
			}
			must(t, tool.Restore(ctx, "*nat\n-F\n-X\nCOMMIT\n"))
		}
	})
}

// TestStamp reads the stamps of tables. Reading a table must not change its stamp. With the legacy
// variant, the stamp must count vipd's entries.
func TestStamp(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		ctx := t.Context()
		empty, err := tool.Stamp("nat")
		must(t, err)
		m := small(t, tool)
		before, err := tool.Stamp("nat")
		must(t, err)
		m.checkWith(t, tool, map[string]int{"VIPD-SERVICES": 1})
		if _, err := tool.FullCounts(ctx, "nat", "VIPD-"); err != nil {
			t.Fatal(err)
		}
		if _, err := tool.Saved(ctx, "nat", "VIPD-", func(string, []string) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if after, err := tool.Stamp("nat"); err != nil || after != before {
			t.Fatalf("stamp after reading the table = %+v, %v; want %+v", after, err, before)
		}
		const ofOthers = 4 + 2*2 + 1 // entries for foreignRules and for the jump to vipd's chain
		ours := 2 * len(m)
		for _, rules := range m {
			ours += len(rules)
		}
		if tool.Variant() == Legacy && before.Entries-empty.Entries != ours+ofOthers {
			t.Fatalf("entries in the stamp = %d, in the empty table = %d; want %d more", before.Entries, empty.Entries, ours+ofOthers)
		}
		if got, err := tool.Stamp("no-such-table"); tool.Variant() == Legacy && (err == nil || got != Stamp{}) {
			t.Fatalf("stamp of a missing table = %+v, %v; want an error", got, err)
		}
	})
}

// TestCountsPackets sends packets. Each rule that matches a packet must count it.
func TestCountsPackets(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		small(t, tool)
		// Without a rule that translates packets, the kernel does not track connections, and no
		// packets pass through the nat table.
		must(t, tool.Restore(t.Context(), "*nat\n:NAT - [0:0]\n-A NAT -p tcp -j REDIRECT --to-ports 1\nCOMMIT\n"))
		to := netip.MustParseAddr("127.0.0.1")
		if tool.Family() == inet.IPv6 {
			to = netip.IPv6Loopback()
		}
		for port, packets := range map[uint16]int{1001: 3, 1002: 2, 1003: 1} {
			for range packets { // each packet opens a connection, because only the first packet of a connection passes through the nat table
				conn, err := net.Dial("udp", netip.AddrPortFrom(to, port).String())
				must(t, err)
				_, err = conn.Write(make([]byte, 72))
				must(t, err)
				must(t, conn.Close())
			}
		}
		want := map[string][]uint64{
			"VIPD-SERVICES": {3, 2, 3}, // packets that return from VIPD-B reach the third rule
			"VIPD-A":        {3},
			"VIPD-B":        {0, 5},
			"VIPD-EMPTY":    nil,
		}
		checkCounts(t, tool, want)
		// Rewriting a chain must reset its counters to zero.
		if _, err := tool.Write(t.Context(), "nat", []Group{{Write: []Chain{{"VIPD-A", []string{"-p udp -j RETURN"}}}}}); err != nil {
			t.Fatal(err)
		}
		want["VIPD-A"] = []uint64{0}
		checkCounts(t, tool, want)
	})
}

func checkCounts(t *testing.T, tool *Tool, want map[string][]uint64) {
	t.Helper()
	full, err := tool.FullCounts(t.Context(), "nat", "VIPD-")
	must(t, err)
	if fmt.Sprint(full) != fmt.Sprint(want) {
		t.Fatalf("counts = %v, want %v", full, want)
	}
}

// TestSaved reads vipd's chains, and the rules that jump to them, one of which another program
// wrote. When visit returns an error, Saved must stop.
func TestSaved(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		ctx := t.Context()
		small(t, tool)
		must(t, tool.Restore(ctx, "*nat\n-A FOREIGN -p tcp -m comment --comment \"a \\\" b -j RETURN\" -g VIPD-EMPTY\nCOMMIT\n"))
		var names []string
		leads, err := tool.Saved(ctx, "nat", "VIPD-", func(chain string, _ []string) error {
			names = append(names, chain)
			return nil
		})
		must(t, err)
		slices.Sort(names)
		if want := []string{"VIPD-A", "VIPD-B", "VIPD-EMPTY", "VIPD-SERVICES"}; !slices.Equal(names, want) {
			t.Errorf("visited chains = %q, want %q", names, want)
		}
		slices.SortFunc(leads, func(a, b Lead) int { return strings.Compare(b.Chain, a.Chain) })
		want := []Lead{{"OUTPUT", "-j VIPD-SERVICES", "VIPD-SERVICES"}, {"FOREIGN", `-p tcp -m comment --comment "a \" b -j RETURN" -g VIPD-EMPTY`, "VIPD-EMPTY"}}
		if !slices.Equal(leads, want) {
			t.Errorf("rules that jump to the chains = %q, want %q", leads, want)
		}
		enough := errors.New("enough")
		visits := 0
		_, err = tool.Saved(ctx, "nat", "VIPD-", func(string, []string) error { visits++; return enough })
		if !errors.Is(err, enough) || visits != 1 {
			t.Errorf("Saved = %v after %d visits, want the error from visit after 1 visit", err, visits)
		}
	})
}

// TestTry tries rules, some of which this kernel does not support. The error for such a rule must
// contain the reason. No trial chain may remain.
func TestTry(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		ctx := t.Context()
		must(t, tool.Restore(ctx, foreignRules))
		before := saved(t, tool, "nat")
		_, err := tool.Try(ctx, "nat", "-p tcp -m statistic --mode random --probability 0.25 -j RETURN", "-m comment --comment \"-j NOPE\" -j RETURN")
		must(t, err)
		for rule, reason := range map[string]string{
			"-p tcp -m nosuchmatch -j RETURN":          "nosuchmatch",
			"-p tcp -j VIPD-NOPE":                      "VIPD-NOPE",
			"-m set --match-set vipd-no dst -j RETURN": "vipd-no",
			"-j TPROXY --on-port 1":                    "", // the nat table does not support this target, and the kernel gives no reason
		} {
			_, err := tool.Try(ctx, "nat", "-p udp -j RETURN", rule)
			if err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("%q: error = %v, want an error that contains %q", rule, err, reason)
			}
		}
		hurried, end := context.WithCancel(ctx)
		run := tool.run
		tool.run = func(ctx context.Context, input, program string, args ...string) (string, string, error) {
			stdout, stderr, err := run(ctx, input, program, args...)
			end() // cancel the context after the trial chain was written
			return stdout, stderr, errors.Join(hurried.Err(), err)
		}
		if _, err := tool.Try(hurried, "nat", "-p udp -j RETURN"); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled context: Try = %v, want context.Canceled", err)
		}
		tool.run = run
		if after := saved(t, tool, "nat"); after != before {
			t.Fatalf("table =\n%s\nwant\n%s", after, before)
		}
	})
}

// TestLooksDuringWrites reads chains while other chains in the same table are being written. All
// results must be correct.
func TestLooksDuringWrites(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		var still []Group
		for i := range 300 {
			still = append(still, simple(i))
		}
		if _, err := tool.Write(t.Context(), "nat", still); err != nil {
			t.Fatal(err)
		}
		m := modelOf(still)
		sizes := m.sizes()
		written := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < 30 && err == nil; i++ {
				g := Group{Write: []Chain{{"VIPD-W", slices.Repeat([]string{"-p tcp -j RETURN"}, 1+i%3)}}}
				if i%3 == 2 {
					g = Group{Delete: []string{"VIPD-W"}}
				}
				_, err = tool.Write(t.Context(), "nat", []Group{g})
			}
			written <- err
		}()
		for done := false; !done; {
			select {
			case err := <-written:
				must(t, err)
				done = true
			default:
			}
			reason, err := tool.Compare(t.Context(), "nat", prefixed("VIPD-C"), sizes)
			if err != nil || reason != "" {
				t.Fatalf("Compare = %q, %v; want no difference", reason, err)
			}
			counts, err := tool.FullCounts(t.Context(), "nat", "VIPD-C")
			must(t, err)
			if len(counts) != len(m) {
				t.Fatalf("chains in FullCounts = %d, want %d", len(counts), len(m))
			}
			for chain, list := range counts {
				if len(list) != 1 {
					t.Fatalf("counts of %[2]s = %[1]v, want 1 because it has one rule", list, chain)
				}
			}
		}
		if _, err := tool.Write(t.Context(), "nat", []Group{{Delete: []string{"VIPD-W"}}}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestNativeChains adds chains to the table with nft. Saved must work unless iptables can't print
// these chains' rules. Listing, writing and deleting vipd's chains must always work.
func TestNativeChains(t *testing.T) {
	empty(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft: ", err)
	}
	everyTool(t, func(t *testing.T, tool *Tool) {
		if tool.Variant() != NFT {
			return
		}
		family := map[inet.Family]string{inet.IPv4: "ip", inet.IPv6: "ip6"}[tool.Family()]
		nft := func(rule string) {
			if out, err := exec.Command("nft", strings.Replace(rule, "nat", family+" nat", 1)).CombinedOutput(); err != nil {
				t.Fatalf("nft %s: %v: %s", rule, err, out)
			}
		}
		// These are a gateway's typical rules.
		nft("add table nat")
		nft("add chain nat postrouting { type nat hook postrouting priority 100; }")
		nft("add rule nat postrouting oifname eth0 masquerade")
		m := small(t, tool)
		m.checkWith(t, tool, map[string]int{"VIPD-SERVICES": 1})
		got, all := model{}, func(string, []string) error { return nil }
		leads, err := tool.Saved(t.Context(), "nat", "VIPD-", func(chain string, rules []string) error { got[chain] = rules; return nil })
		if err != nil || !maps.EqualFunc(got, m, slices.Equal[[]string]) || len(leads) != 1 {
			t.Fatalf("chains from Saved = %q, jumps = %v, error = %v; want the chains %q", got, leads, err, m)
		}

		nft("add chain nat mine")
		nft("add rule nat mine ct state established accept")
		if _, err := tool.Saved(t.Context(), "nat", "VIPD-", all); !errors.Is(err, ErrIncompatible) {
			t.Fatalf("Saved = %v, want ErrIncompatible", err)
		}
		chains, err := tool.Chains(t.Context(), "nat", prefixed("VIPD-"))
		if err != nil || len(chains) != len(m) {
			t.Fatalf("chains = %q, %v; want %d chains", chains, err, len(m))
		}
		if removed := join(t, tool, "nat", "OUTPUT", "", "VIPD-SERVICES"); len(removed) != 1 {
			t.Fatalf("lines that removed rules = %q, want one line that removes the jump", removed)
		}
		_, err = tool.Write(t.Context(), "nat", []Group{{Delete: chains}})
		must(t, err)
	})
}

// TestWriteTellsCounts uses a single write to replace a chain whose rules have counted packets and
// to delete another chain. Before a second write, another program deletes a chain. Both writes must
// return the existing chains' counts.
func TestWriteTellsCounts(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		must(t, tool.Restore(t.Context(), "*nat\n:VIPD-A - [0:0]\n:VIPD-B - [0:0]\n:VIPD-C - [0:0]\n"+
			"-A VIPD-A -p tcp -c 12 720 -m comment --comment \"not -c 1 2\" -j RETURN\n-A VIPD-A -c 3 4\n-A VIPD-C -c 5 6\nCOMMIT\n"))
		first := []uint64{12, 3}
		if tool.Variant() == NFT && tool.Family() == inet.IPv6 {
			first = make([]uint64, 2) // this iptables ignores counters in its input
		}
		for _, c := range []struct {
			asked []string
			want  map[string][]uint64
		}{
			{[]string{"VIPD-A", "VIPD-B"}, map[string][]uint64{"VIPD-A": first, "VIPD-B": nil}},
			{nil, nil},
			{[]string{"VIPD-A"}, map[string][]uint64{"VIPD-A": {0}}},
		} {
			groups := []Group{{Write: []Chain{{Name: "VIPD-A", Rules: []string{"-p udp"}}}, Delete: []string{"VIPD-B"}}}
			done, got, err := tool.WriteCounted(t.Context(), "nat", groups, c.asked)
			if done != 1 || err != nil || !maps.EqualFunc(got, c.want, slices.Equal) {
				t.Errorf("counts of the chains %q = %v, %d groups written, error = %v; want %v", c.asked, got, done, err, c.want)
			}
		}
		_, err := tool.Write(t.Context(), "nat", []Group{{Delete: []string{"VIPD-C"}}})
		must(t, err)
		_, got, err := tool.WriteCounted(t.Context(), "nat", []Group{{Write: []Chain{{Name: "VIPD-A"}}}}, []string{"VIPD-A", "VIPD-C"})
		if rules, ok := got["VIPD-A"]; err != nil || !ok || len(rules) != 1 {
			t.Errorf("another chain is missing: counts = %v, %v; want the counts of VIPD-A", got, err)
		}
	})
}
