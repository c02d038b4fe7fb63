package xtables

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"vipd/dataplane/internal/inet"
	"vipd/test/wait"
)

const foreignRules = `*nat
:FOREIGN - [0:0]
:VIP-NOT-OURS - [0:0]
-A FOREIGN -p tcp -m comment --comment "-j VIPD-A of another" -j ACCEPT
-A VIP-NOT-OURS -j FOREIGN
-A PREROUTING -j FOREIGN
-A POSTROUTING -p udp -j VIP-NOT-OURS
COMMIT
`

// foreign returns other programs' rules in the nat table.
func foreign(t *testing.T, tool *Tool) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(saved(t, tool, "nat")) {
		if !strings.HasPrefix(line, ":VIPD-") && !strings.HasPrefix(line, "-A VIPD-") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// model maps the names of vipd's chains to the rules that they should have.
type model map[string][]string

// sizes returns each chain's size as Compare expects it: its number of rules, plus the number of
// vipd's rules that jump to it.
func (m model) sizes() map[string]int {
	sizes := map[string]int{}
	for name, rules := range m {
		sizes[name] += len(rules)
		for _, r := range rules {
			if to := targetOf(r); strings.HasPrefix(to, "VIPD-") {
				sizes[to]++
			}
		}
	}
	return sizes
}

// check reads the table in every way, and compares the result with the model.
func (m model) check(t *testing.T, tool *Tool) {
	t.Helper()
	got := model{}
	_, err := tool.Saved(t.Context(), "nat", "VIPD-", func(chain string, rules []string) error {
		if _, twice := got[chain]; twice {
			t.Errorf("Saved visited chain %s twice, want once", chain)
		}
		got[chain] = rules
		return nil
	})
	must(t, err)
	if !maps.EqualFunc(got, m, slices.Equal[[]string]) {
		t.Fatalf("chains from Saved =\n%q\nwant\n%q", got, m)
	}
	reason, err := tool.Compare(t.Context(), "nat", prefixed("VIPD-"), m.sizes())
	must(t, err)
	if reason != "" {
		t.Fatalf("Compare = %s, want no difference for the chains\n%q", reason, m)
	}
	full, err := tool.FullCounts(t.Context(), "nat", "VIPD-")
	must(t, err)
	if len(full) != len(m) {
		t.Fatalf("chains in FullCounts = %d, want %d", len(full), len(m))
	}
	for chain, rules := range m {
		if list, ok := full[chain]; !ok || len(list) != len(rules) {
			t.Fatalf("counts of %[2]s = %[1]v, want %[3]d counts", list, chain, len(rules))
		}
	}
}

// randomRule returns a random rule in the format that save programs print. If to is not "", the
// rule jumps to the chain with this name.
func randomRule(rng *rand.Rand, family inet.Family, to string) string {
	to4, ip := "10.0.0.%d:80", "10.96.0.%d/32"
	if family == inet.IPv6 {
		to4, ip = "[fd00::%d]:80", "fd96::%d/128"
	}
	n := 1 + rng.IntN(99)
	switch {
	case to != "" && rng.IntN(2) == 0:
		return "-d " + fmt.Sprintf(ip, n) + " -p tcp -m tcp --dport 80 -g " + to
	case to != "":
		return "-j " + to
	case rng.IntN(3) == 0:
		return "-d " + fmt.Sprintf(ip, n) + " -j RETURN"
	case rng.IntN(3) == 0:
		return "-d " + fmt.Sprintf(ip, n) // a rule without a target
	}
	return "-p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination " + fmt.Sprintf(to4, n)
}

// randomGroup returns a group that writes some random chains, and deletes chains that nothing uses.
// Chains have ranks, and jump only to chains with a higher rank, so there are no loops.
func randomGroup(rng *rand.Rand, family inet.Family, m model) Group {
	const ranks = 12
	var g Group
	used := map[string]bool{}
	for range 1 + rng.IntN(3) {
		i := rng.IntN(ranks)
		c := Chain{Name: fmt.Sprintf("VIPD-10.96.0.%d:80/t", i)}
		if used[c.Name] {
			continue
		}
		used[c.Name] = true
		for range rng.IntN(4) {
			to := fmt.Sprintf("VIPD-10.96.0.%d:80/t", i+1+rng.IntN(ranks))
			if _, ok := m[to]; !ok {
				to = ""
			}
			c.Rules = append(c.Rules, randomRule(rng, family, to))
		}
		g.Write = append(g.Write, c)
	}
	g.applyWrites(m)
	for name, n := range m.sizes() {
		if n == len(m[name]) && !used[name] && rng.IntN(4) == 0 {
			g.Delete = append(g.Delete, name)
			used[name] = true
		}
	}
	for _, name := range g.Delete {
		delete(m, name)
	}
	if rng.IntN(4) == 0 {
		g.Delete = append(g.Delete, "VIPD-NEVER")
	}
	return g
}

func (g *Group) applyWrites(m model) {
	for _, c := range g.Write {
		m[c.Name] = c.Rules
	}
}

// TestWriteFollowsModel writes random groups, several in each call. Afterwards, the table must
// equal the model.
func TestWriteFollowsModel(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		must(t, tool.Restore(t.Context(), foreignRules))
		before := foreign(t, tool)
		for seed := range uint64(wait.Soak(1, 3)) {
			rng := rand.New(rand.NewPCG(seed, 1))
			m := model{}
			for step := range 12 {
				var groups []Group
				for range 1 + rng.IntN(6) {
					groups = append(groups, randomGroup(rng, tool.Family(), m))
				}
				if n, err := tool.Write(t.Context(), "nat", groups); err != nil || n != len(groups) {
					t.Fatalf("seed %d, step %d: groups written = %d, want %d: %v\n%+v", seed, step, n, len(groups), err, groups)
				}
				m.check(t, tool)
			}
			var all Group
			for name := range m {
				all.Delete = append(all.Delete, name)
			}
			if _, err := tool.Write(t.Context(), "nat", []Group{all}); err != nil {
				t.Fatal(err)
			}
			model{}.check(t, tool)
		}
		if after := foreign(t, tool); after != before {
			t.Fatalf("foreign rules =\n%s\nwant\n%s", after, before)
		}
	})
}

// simple returns a group that consists of one chain with one rule.
func simple(i int) Group {
	return Group{Write: []Chain{{Name: fmt.Sprintf("VIPD-C%d", i), Rules: []string{fmt.Sprintf("-p tcp -m tcp --dport %d -j RETURN", i+1)}}}}
}

// TestWriteStopsAtTheBadGroup writes several groups, of which the kernel or the program refuses
// one. Only earlier groups may take effect.
func TestWriteStopsAtTheBadGroup(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		must(t, tool.Restore(t.Context(), "*nat\n:HELD - [0:0]\n:VIPD-HELD - [0:0]\n-A HELD -j VIPD-HELD\n-A PREROUTING -j HELD\nCOMMIT\n"))
		base := model{"VIPD-HELD": nil}
		for _, c := range []struct {
			name  string
			bad   Group
			quote string // must be part of the error
		}{
			{"a rule nobody can read", Group{Write: []Chain{{"VIPD-BAD", []string{"-p tcp -j RETURN", "--bogus"}}}}, "-A VIPD-BAD --bogus"},
			{"a target that is missing", Group{Write: []Chain{{"VIPD-BAD", []string{"-p tcp -j VIPD-NOPE"}}, {"VIPD-BAD2", []string{"-p tcp -j RETURN"}}}}, "-A VIPD-BAD -p tcp -j VIPD-NOPE"},
			{"a chain that is written later", Group{Write: []Chain{{"VIPD-BAD", []string{"-p tcp -j VIPD-LATER"}}}}, "-A VIPD-BAD -p tcp -j VIPD-LATER"},
			{"a set that is missing", Group{Write: []Chain{{"VIPD-BAD", []string{"-m set --match-set vipd-nope dst -j RETURN"}}}}, "vipd-nope"},
			{"a target of another hook", Group{Write: []Chain{{"VIPD-HELD", []string{"-j MASQUERADE"}}}}, "VIPD-HELD"},
			{"a chain that rules lead to", Group{Write: []Chain{{"VIPD-BAD", nil}}, Delete: []string{"VIPD-HELD"}}, "VIPD-HELD"},
			{"a loop", Group{Write: []Chain{{"VIPD-HELD", []string{"-j VIPD-BAD"}}, {"VIPD-BAD", []string{"-j VIPD-HELD"}}}}, "VIPD-"},
		} {
			const n = 500
			for _, at := range []int{0, 3, 301, n} {
				t.Run(fmt.Sprint(c.name, " at ", at), func(t *testing.T) {
					var groups []Group
					want := maps.Clone(base)
					for i := range n {
						if i == at {
							groups = append(groups, c.bad)
						}
						g := simple(i)
						groups = append(groups, g)
						if i < at {
							g.applyWrites(want)
						}
					}
					if at == n {
						groups = append(groups, c.bad)
					}
					groups = append(groups, Group{Write: []Chain{{"VIPD-LATER", nil}}})
					done, err := tool.Write(t.Context(), "nat", groups)
					_, ok := errors.AsType[*OpError](err)
					if done != at || !ok || !strings.Contains(err.Error(), c.quote) {
						t.Errorf("groups written = %d, error = %v; want %d, and an error that contains %s", done, err, at, c.quote)
					}
					want.checkWith(t, tool, map[string]int{"VIPD-HELD": 1})
					var rest Group
					for name := range want {
						if name != "VIPD-HELD" {
							rest.Delete = append(rest.Delete, name)
						}
					}
					if _, err := tool.Write(t.Context(), "nat", []Group{rest}); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	})
}

// checkWith compares vipd's chains and their sizes with the model. more maps each of vipd's chains
// to the number of other programs' rules that jump to it.
func (m model) checkWith(t *testing.T, tool *Tool, more map[string]int) {
	t.Helper()
	sizes := m.sizes()
	for name, n := range more {
		sizes[name] += n
	}
	if reason, err := tool.Compare(t.Context(), "nat", prefixed("VIPD-"), sizes); err != nil || reason != "" {
		t.Fatalf("Compare = %q, %v; want no difference", reason, err)
	}
}

// TestWriteKeepsGroupsWhole writes a chain, deletes it, writes it again, and writes a group that is
// larger than a block, in a single call. Each group must take effect completely or not at all.
func TestWriteKeepsGroupsWhole(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		m := model{"VIPD-A": {"-p udp -j RETURN"}}
		big := Group{}
		for i := range 2 * nftBlock().chains {
			c := Chain{fmt.Sprintf("VIPD-B%d", i), []string{"-p tcp -j RETURN", "-p udp -j RETURN", "-p sctp -j RETURN"}}
			big.Write = append(big.Write, c)
		}
		big.applyWrites(m)
		groups := []Group{
			{Write: []Chain{{"VIPD-A", []string{"-p tcp -j RETURN"}}}},
			{Delete: []string{"VIPD-A"}},
			{Write: []Chain{{"VIPD-A", []string{"-p tcp -j RETURN"}}}},
			big,
			{Write: []Chain{{"VIPD-A", []string{"-p udp -j RETURN"}}}},
			{},
		}
		n, err := tool.Write(t.Context(), "nat", groups)
		if err != nil || n != len(groups) {
			t.Fatalf("groups written = %d, %v; want %d", n, err, len(groups))
		}
		m.check(t, tool)

		// The large group's last rule is refused, so this group must change nothing.
		last := &big.Write[len(big.Write)-1]
		last.Rules = append(last.Rules, "-j VIPD-NOPE")
		big.Write[0].Rules = nil
		if n, err := tool.Write(t.Context(), "nat", []Group{simple(1), big}); n != 1 || err == nil {
			t.Fatalf("groups written = %d, error = %v; want 1 and an error", n, err)
		}
		one := simple(1)
		one.applyWrites(m)
		m["VIPD-B0"] = []string{"-p tcp -j RETURN", "-p udp -j RETURN", "-p sctp -j RETURN"}
		m[last.Name] = m["VIPD-B0"]
		m.check(t, tool)
	})
}

// TestWriteInUserNamespace writes chains in a user namespace, where the kernel limits the size of
// an nft transaction. Large writes must succeed, because Write divides them into smaller blocks.
func TestWriteInUserNamespace(t *testing.T) {
	const mark = "VIPD_TEST_USERNS"
	if os.Getenv(mark) == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root: makes a network namespace")
		}
		cmd := exec.Command("unshare", "--user", "--map-root-user", "--net", "--kill-child", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), mark+"=yes", "XTABLES_LOCKFILE="+t.TempDir()+"/xtables.lock")
		out, err := cmd.CombinedOutput()
		switch {
		case strings.Contains(string(out), "--- SKIP") || strings.Contains(string(out), "unshare:"):
			t.Skip(string(out))
		case err != nil:
			t.Fatalf("in a user namespace: %v\n%s", err, out)
		}
		return
	}
	everyTool(t, func(t *testing.T, tool *Tool) {
		m := model{}
		var groups []Group
		rule := "-p tcp -m statistic --mode random --probability 0.50000000000 -j RETURN"
		for i := range 400 {
			groups = append(groups, Group{Write: []Chain{{fmt.Sprintf("VIPD-C%d", i), slices.Repeat([]string{rule}, 5)}}})
			groups[i].applyWrites(m)
		}
		if n, err := tool.Write(t.Context(), "nat", groups); err != nil || n != len(groups) {
			t.Fatalf("groups written = %d, %v; want %d", n, err, len(groups))
		}
		m.check(t, tool)
		if tool.Variant() == Legacy {
			return
		}
		big := Group{Write: []Chain{{"VIPD-BIG", slices.Repeat([]string{rule}, 3000)}}}
		n, err := tool.Write(t.Context(), "nat", []Group{simple(0), big, simple(1)})
		if n != 1 || err == nil || !strings.Contains(err.Error(), "Message too long") || !strings.Contains(err.Error(), "VIPD-BIG") {
			t.Fatalf("groups written = %d, error = %v; want 1, and an error that says that VIPD-BIG is too long", n, err)
		}
	})
}
