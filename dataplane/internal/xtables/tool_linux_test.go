package xtables

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"vipd/dataplane/internal/inet"
)

// everyTool runs test with each iptables variant and family that works on this host.
func everyTool(t *testing.T, test func(t *testing.T, tool *Tool)) {
	for _, variant := range []Variant{NFT, Legacy} {
		for _, family := range inet.Families() {
			t.Run(fmt.Sprintf("%s %s", variant, family), func(t *testing.T) {
				tool, err := Find(t.Context(), family, variant, slog.New(slog.DiscardHandler))
				if _, ok := errors.AsType[*UnsupportedError](err); ok {
					t.Skip(err)
				}
				if err != nil {
					t.Fatal(err)
				}
				test(t, tool)
			})
		}
	}
}

// prefixed returns a function that reports whether a chain's name has the prefix.
func prefixed(prefix string) func(chain string) bool {
	return func(chain string) bool { return strings.HasPrefix(chain, prefix) }
}

// saved returns the rules that the tool's save program prints, without counters and comments.
func saved(t *testing.T, tool *Tool, table string) string {
	t.Helper()
	out, err := exec.Command(tool.program+"-save", "-t", table).Output()
	if err != nil {
		t.Fatalf("%s-save: %v", tool.program, err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		if line[0] == ':' || line[0] == '-' {
			line, _, _ = strings.Cut(line, " [")
			b.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTool(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		ctx := t.Context()
		must(t, tool.Restore(ctx, "*filter\n:FOREIGN - [0:0]\n-A FOREIGN -p tcp -m comment --comment \"-j VIPD-A of another\" -j ACCEPT\n-A INPUT -j FOREIGN\n-A INPUT -m comment --comment \"a \\\" -j VIPD-A\" -j FOREIGN\nCOMMIT\n"))
		before := saved(t, tool, "filter")

		must(t, tool.Restore(ctx, "*filter\n:VIPD-A - [0:0]\n:VIPD-B - [0:0]\n-A VIPD-A -j VIPD-B\n-A VIPD-B -p udp -j DROP\nCOMMIT\n"))
		for range 2 {
			join(t, tool, "filter", "INPUT", "-p udp -j VIPD-A", "VIPD-A")
			join(t, tool, "filter", "INPUT", "-p tcp -j VIPD-B", "VIPD-B")
		}
		got := saved(t, tool, "filter")
		want := []string{"-A INPUT -p tcp -j VIPD-B", "-A INPUT -p udp -j VIPD-A", "-A INPUT -j FOREIGN", `-A INPUT -m comment --comment "a \" -j VIPD-A" -j FOREIGN`}
		if input := rulesOf(got, "INPUT"); !slices.Equal(input, want) {
			t.Fatalf("rules of INPUT = %q, want %q", input, want)
		}

		// Rewriting a chain must delete its old rules. Chains that are not in the input must keep
		// their rules.
		must(t, tool.Restore(ctx, "*filter\n:VIPD-B - [0:0]\n-A VIPD-B -p tcp -j DROP\nCOMMIT\n"))
		got = saved(t, tool, "filter")
		if b, a := rulesOf(got, "VIPD-B"), rulesOf(got, "VIPD-A"); !slices.Equal(b, []string{"-A VIPD-B -p tcp -j DROP"}) || len(a) != 1 {
			t.Fatalf("after VIPD-B was rewritten: rules of VIPD-B = %q, of VIPD-A = %q; want the new rule in VIPD-B and one rule in VIPD-A", b, a)
		}
		chains, err := tool.Chains(ctx, "filter", prefixed("VIPD-"))
		must(t, err)
		slices.Sort(chains)
		if !slices.Equal(chains, []string{"VIPD-A", "VIPD-B"}) {
			t.Fatalf("chains = %q, want VIPD-A and VIPD-B", chains)
		}
		checkExists(t, tool, "VIPD-A", true)

		must(t, tool.Restore(ctx, "*filter\n-A INPUT -p udp -j VIPD-A\nCOMMIT\n"))
		if lines := join(t, tool, "filter", "INPUT", "-p udp -j VIPD-A", "VIPD-A"); len(lines) != 1 {
			t.Fatalf("lines that removed jumps = %q, want a line for the second of two jumps", lines)
		}
		if lines := join(t, tool, "filter", "INPUT", "", "VIPD-A", "VIPD-B"); len(lines) != 2 {
			t.Fatalf("lines that removed jumps = %q, want a line for each of the two jumps", lines)
		}
		_, err = tool.Write(ctx, "filter", []Group{{Delete: append(chains, "VIPD-NEVER")}})
		must(t, err)
		checkExists(t, tool, "VIPD-A", false)
		if after := saved(t, tool, "filter"); after != before {
			t.Fatalf("foreign rules =\n%s\nwant\n%s", after, before)
		}
	})
}

// join makes rule the base chain's only rule that jumps to any of chains. If rule is "", it removes
// all such rules. It returns the lines that it passed to the restore program.
func join(t testing.TB, tool *Tool, table, base, rule string, chains ...string) []string {
	t.Helper()
	rules, err := tool.Rules(t.Context(), table, base)
	lines := Join(rules, base, rule, chains...)
	if err == nil && len(lines) > 0 {
		err = tool.Restore(t.Context(), "*"+table+"\n"+strings.Join(lines, "\n")+"\nCOMMIT\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func checkExists(t *testing.T, tool *Tool, chain string, want bool) {
	t.Helper()
	if got, err := tool.ChainExists(t.Context(), "filter", chain); err != nil || got != want {
		t.Fatalf("ChainExists(%s) = %t, %v; want %t", chain, got, err, want)
	}
}

func rulesOf(saved, chain string) []string {
	var rules []string
	for line := range strings.Lines(saved) {
		if strings.HasPrefix(line, "-A "+chain+" ") {
			rules = append(rules, strings.TrimSpace(line))
		}
	}
	return rules
}

// TestLateOutput runs a program whose child prints text after the program has exited. execute must
// return this text without an error.
func TestLateOutput(t *testing.T) {
	out, _, err := execute(t.Context(), "", "sh", "-c", "(sleep 1.5; echo late) & exit 0")
	if out != "late\n" || err != nil {
		t.Errorf("output = %q, %v; want \"late\\n\"", out, err)
	}
}

// TestRefusals calls Restore with lines that the kernel or iptables refuses. The error must quote
// the refused line. No line in the input may take effect.
func TestRefusals(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		for _, c := range []struct{ input, line string }{
			{"*filter\n:VIPD-A - [0:0]\n-A VIPD-A -j VIPD-NOPE\nCOMMIT\n", "-A VIPD-A -j VIPD-NOPE"},
			{"*filter\n:VIPD-A - [0:0]\n-A VIPD-A --bogus\nCOMMIT\n", "-A VIPD-A --bogus"},
			{"*filter\n:VIPD-A - [0:0]\n-X VIPD-NOPE\nCOMMIT\n", "-X VIPD-NOPE"},
			{"*filter\n:VIPD-A - [0:0]\n-A VIPD-A -m set --match-set vipd-nope dst -j DROP\nCOMMIT\n", "-A VIPD-A -m set --match-set vipd-nope dst -j DROP"},
		} {
			err := tool.Restore(t.Context(), c.input)
			op, ok := errors.AsType[*OpError](err)
			if !ok || op.Input != c.line {
				t.Errorf("%q: error = %v, want an error that quotes %q", c.input, err, c.line)
			}
			checkExists(t, tool, "VIPD-A", false)
		}
	})
}

// TestFollowsTheHost adds other programs' rules to one variant. Auto must then select that variant.
func TestFollowsTheHost(t *testing.T) {
	empty(t)
	log := slog.New(slog.DiscardHandler)
	for _, variant := range []Variant{Legacy, NFT} {
		host, err := Find(t.Context(), inet.IPv4, variant, log)
		if _, ok := errors.AsType[*UnsupportedError](err); ok {
			t.Skip(err)
		}
		must(t, err)
		must(t, host.Restore(t.Context(), "*filter\n-A INPUT -p sctp -j ACCEPT\nCOMMIT\n"))
		got, err := Find(t.Context(), inet.IPv4, Auto, log)
		must(t, err)
		if got.Variant() != variant {
			t.Errorf("Auto selects %s (%s), want the host's variant %s", got.Variant(), got.program, variant)
		}
		must(t, host.Restore(t.Context(), "*filter\n-D INPUT -p sctp -j ACCEPT\nCOMMIT\n"))
	}
}
