package iptables

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestForeignEdits makes random changes, restarts the dataplane, and edits vipd's chains as another
// program might. After all reported damage is repaired, the kernel must have exactly the desired
// rules.
func TestForeignEdits(t *testing.T) {
	lab.Require(t)
	for _, backend := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			for seed := range uint64(2) {
				t.Run(fmt.Sprint(seed), func(t *testing.T) { newForeignEditor(t, backend, seed).run(10) })
			}
		})
	}
}

// foreignEditor changes frontends at random, and edits vipd's chains as another program might.
type foreignEditor struct {
	*rand.Rand
	*testing.T
	backend xtables.Variant
	d       *Dataplane
	wanted  map[balancer.Key]*balancer.Frontend
	history []string
}

func newForeignEditor(t *testing.T, backend xtables.Variant, seed uint64) *foreignEditor {
	t.Helper()
	v := &foreignEditor{Rand: rand.New(rand.NewPCG(seed, 25)), T: t, backend: backend, wanted: map[balancer.Key]*balancer.Frontend{}}
	v.open()
	t.Cleanup(func() {
		if err := v.d.Close(context.Background(), false); err != nil {
			t.Error("closing: ", err)
		}
	})
	for range 3 {
		v.change()
	}
	v.repairUntilIntact()
	v.history = nil
	return v
}

func (v *foreignEditor) run(rounds int) {
	for range rounds {
		for range 1 + v.IntN(3) {
			switch n := v.IntN(10); {
			case n == 0:
				v.restart()
			case n < 4:
				v.change()
			default:
				v.edit()
			}
		}
		var wrong string
		for until := time.Now().Add(wait.Scaled(time.Minute)); time.Now().Before(until); { // slow checks run less often, so several checks may be needed
			v.repairUntilIntact()
			if wrong = v.wrong(); wrong == "" {
				break
			}
		}
		if wrong != "" {
			v.Fatalf("difference after the repair: %s\nhistory:\n%s", wrong, strings.Join(v.history, "\n"))
		}
	}
}

func (v *foreignEditor) logStep(format string, args ...any) {
	v.history = append(v.history, fmt.Sprintf(format, args...))
}

func (v *foreignEditor) open() {
	v.Helper()
	d, err := New(context.Background(), Options{Variant: v.backend})
	if err != nil {
		v.Fatal(err)
	}
	v.d = d
}

func (v *foreignEditor) restart() {
	v.Helper()
	if err := v.d.Close(context.Background(), true); err != nil {
		v.Fatal(err)
	}
	v.open()
	v.logStep("restart")
	v.observe()
}

// change adds, changes or removes a frontend.
func (v *foreignEditor) change() {
	v.Helper()
	k := balancer.Key{Addr: netip.MustParseAddr([]string{"10.96.0.20", "10.96.0.21", "fd00::20"}[v.IntN(3)]), Port: balancer.PortRange(80 + v.IntN(3)), Proto: balancer.TCP}
	f := &balancer.Frontend{Key: k, Service: "web", Policy: balancer.Policy{Scheduler: []balancer.Scheduler{balancer.RoundRobin, balancer.WeightedRoundRobin, balancer.Maglev}[v.IntN(3)]}}
	if v.IntN(3) == 0 {
		f.AffinityTimeout = 600e9
	}
	n := 1 + v.IntN(13)
	for i := range n {
		at := netip.AddrFrom4([4]byte{10, 2, 0, byte(i + 2)})
		if !k.Addr.Is4() {
			at = netip.AddrFrom16([16]byte{0xfd, 2, 15: byte(i + 2)})
		}
		f.Backends = append(f.Backends, balancer.Backend{Addr: netip.AddrPortFrom(at, 8080), State: balancer.Active, Weight: 1 + v.IntN(3)})
	}
	if v.wanted[k] != nil && v.IntN(3) == 0 {
		f = nil
	}
	v.logStep("change %s to %v", k, f)
	if err := v.d.Apply(context.Background(), []dataplane.Change{{Key: k, New: f}}); err != nil {
		v.Fatal(err)
	}
	if f == nil {
		delete(v.wanted, k)
	} else {
		v.wanted[k] = f
	}
}

// edit changes one of vipd's chains, the whole nat table, or the jumps to vipd's chains, as another
// program might.
func (v *foreignEditor) edit() {
	v.Helper()
	program := []string{"iptables-", "ip6tables-"}[v.IntN(2)] + string(v.backend)
	var chains []string
	rules := map[string][]string{}
	for _, line := range v.save(program) {
		if name, ok := strings.CutPrefix(line, ":VIPD-"); ok {
			name, _, _ = strings.Cut("VIPD-"+name, " ")
			chains = append(chains, name)
		} else if words := strings.Fields(line); words[0] == "-A" {
			rules[words[1]] = append(rules[words[1]], line)
		}
	}
	if len(chains) == 0 {
		return
	}
	chain := chains[v.IntN(len(chains))]
	n := len(rules[chain])
	at := fmt.Sprint(1 + v.IntN(max(n, 1)))
	last := fmt.Sprint(max(n, 1))
	kinds := [][]string{
		{"-A", chain, "-m", "comment", "--comment", "hello"},
		{"-I", chain, "1", "-j", "RETURN"},
		{"-F", chain},
		{"-D", chain, last},
		{"-D", chain, at},
		{"-R", chain, at, "-m", "comment", "--comment", "hello"},
		{"-R", chain, at, "-p", "tcp", "-j", "RETURN"},
		{"-R", chain, at, "-p", "tcp", "-j", "REDIRECT", "--to-ports", "9"},
		{"-F"},
		{"-D", hooks()[v.IntN(2)], "-j", rootChain},
		{"-I", hooks()[v.IntN(2)], "-j", rootChain},
		{"-N", nodePrefix + "ZZ"},
		{"-N", frontPrefix + "10.96.0.99:80/t"},
	}
	args := append([]string{"-w", "-t", "nat"}, kinds[v.IntN(len(kinds))]...)
	out, err := exec.Command(program, args...).CombinedOutput()
	v.logStep("%s %s: %v %s", program, strings.Join(args[1:], " "), err, strings.TrimSpace(string(out)))
}

func (v *foreignEditor) save(program string) []string {
	v.Helper()
	out, err := exec.Command(program+"-save", "-t", "nat").Output() // without standard error, which contains messages about the other backend's tables
	if err != nil {
		v.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// repairUntilIntact checks and repairs the table like the engine, until no damage is reported.
func (v *foreignEditor) repairUntilIntact() {
	v.Helper()
	for range 4 {
		reason, err := v.d.Intact(context.Background())
		if err != nil {
			v.Fatal(err)
		}
		if reason == "" {
			return
		}
		v.logStep("looking: %s", reason)
		v.observe()
	}
	v.Fatalf("Intact still returns a reason after each repair\nhistory:\n%s", strings.Join(v.history, "\n"))
}

func (v *foreignEditor) observe() {
	v.Helper()
	r := &rig{T: v.T, d: v.d}
	var all []*balancer.Frontend
	for _, f := range v.wanted {
		all = append(all, f)
	}
	v.logStep("mended %v", r.observe(all...))
}

// wrong describes a difference between the tables and the wanted state. If there is none, it
// returns "".
func (v *foreignEditor) wrong() string {
	v.Helper()
	for _, name := range inet.Families() {
		y, want, got := v.d.families[name], map[string][]string{}, map[string][]string{}
		program := map[inet.Family]string{inet.IPv4: "iptables-", inet.IPv6: "ip6tables-"}[name] + string(v.backend)
		reached := map[balancer.Key]bool{}
		for k, f := range v.wanted {
			if inet.Of(k.Addr) == name {
				made := render(f, y.fronts[k].slots, "")
				for _, c := range append(made.below, made.front) {
					want[c.Name] = c.Rules
				}
				reached[k] = true
			}
		}
		jumps := map[string]int{}
		for _, line := range v.save(program) {
			words := strings.Fields(line)
			switch {
			case strings.HasPrefix(line, ":VIPD-"):
				if name := words[0][1:]; got[name] == nil {
					got[name] = nil // record the chain even if it has no rules
				}
			case words[0] == "-A" && strings.HasPrefix(words[1], "VIPD-"):
				got[words[1]] = append(got[words[1]], strings.Join(words[2:], " "))
			case words[0] == "-A" && strings.HasSuffix(line, "-j "+rootChain):
				jumps[words[1]]++
			}
		}
		if len(got) == 0 && len(want) == 0 {
			continue
		}
		y.tree.root.each(func(n *treeNode) {
			want[n.name] = n.chain().Rules
			for _, w := range n.branches {
				if w.node == nil {
					delete(reached, w.at.key())
				}
			}
		})
		if len(reached) > 0 {
			return fmt.Sprintf("%s: the tree does not lead to %v", name, reached)
		}
		for chain := range want {
			if !slices.EqualFunc(got[chain], want[chain], sameText) {
				return fmt.Sprintf("%s: %s has\n%s\nwant\n%s", name, chain, strings.Join(got[chain], "\n"), strings.Join(want[chain], "\n"))
			}
			delete(got, chain)
		}
		if len(got) > 0 {
			return fmt.Sprintf("%s: chains are too many: %v", name, got)
		}
		if len(jumps) != 2 || jumps["PREROUTING"] != 1 || jumps["OUTPUT"] != 1 {
			return fmt.Sprintf("%s: the jumps are %v", name, jumps)
		}
	}
	return ""
}

// TestToolThatDoesNothing replaces an iptables program with a program that reports success without
// changing anything. Each attempt to add, change or remove a frontend, or to repair a rule, must
// then return an error.
func TestToolThatDoesNothing(t *testing.T) {
	eachBackend(t, func(r *rig) {
		f, g := r.web(balancer.TCP, 2, 3), r.web(balancer.UDP, 2)
		r.apply(f)
		r.iptables("-R", frontChain(f.Key), "1", "-p", "tcp", "-j", "RETURN")
		if _, err := r.d.Observe(r.Context()); err != nil {
			r.Fatal(err)
		}
		path := os.Getenv("PATH")
		idle := r.TempDir()
		for _, name := range []string{"iptables-nft-restore", "iptables-legacy-restore"} {
			if err := os.WriteFile(filepath.Join(idle, name), []byte("#!/bin/sh\nexec cat >/dev/null\n"), 0o755); err != nil {
				r.Fatal(err)
			}
		}
		r.Setenv("PATH", idle+":"+path)
		for what, c := range map[string]dataplane.Change{
			"a new frontend": {Key: g.Key, New: g}, "a replaced rule": {Key: f.Key, New: f}, "a frontend that goes": {Key: f.Key},
			"another endpoint": {Key: f.Key, New: r.web(balancer.TCP, 2, 4)},
		} {
			for _, try := range []string{"first", "second"} {
				err := r.d.Apply(context.Background(), []dataplane.Change{c})
				if err == nil || !strings.Contains(err.Error(), "differ from vipd's") {
					r.Errorf("%s, attempt %s: error = %v, want an error that contains \"differ from vipd's\"", what, try, err)
				}
			}
		}
		r.Setenv("PATH", path)
		r.observe(f)
		if _, name := r.ask(balancer.TCP); name != "s2" && name != "s3" {
			r.Errorf("server = %q, want s2 or s3", name)
		}
		if wrong := r.observe(f); len(wrong) > 0 {
			r.Errorf("differences after the repair = %v, want none", wrong)
		}
	})
}
