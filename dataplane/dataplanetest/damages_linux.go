package dataplanetest

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/test/lab"
)

// Damages returns named functions. Each damages some of the state that a dataplane and its Host
// have in iptables, in ipsets, in the guard's tables or on devices. backend is the iptables variant
// (see Subject.Backend).
func Damages(backend string) map[string]func(t testing.TB) {
	s := &Subject{Backend: backend}
	return map[string]func(t testing.TB){
		"guard-deleted":  scriptGuard("delete table %s"),
		"guard-flushed":  scriptGuard("flush table %s"),
		"guard-bypassed": scriptGuard("insert rule %s prerouting accept\ninsert rule %[1]s output accept\ninsert rule %[1]s input accept"),
		"guard-emptied":  scriptGuard("flush set %s special\nflush set %[1]s served\nflush set %[1]s held"),

		"tables":       s.flushTables,
		"chain-nat":    func(t testing.TB) { s.flushChain(t, "nat") },
		"chain-filter": func(t testing.TB) { s.flushChain(t, "filter") },
		"jumps":        s.removeJumps,
		"rules":        s.replaceRules,
		"sets":         s.destroySets,
		"addresses":    func(t testing.TB) { removeAddresses(t, nil) },
	}
}

// Scratches is like Damages, but its functions damage only the state that serves the service at
// heldVIP, in the guard's sets and on devices.
func Scratches() map[string]func(t testing.TB) {
	return map[string]func(t testing.TB){
		"entry":   func(t testing.TB) { removeEntry(t, heldVIP()[0]) },
		"entry6":  func(t testing.TB) { removeEntry(t, heldVIP()[1]) },
		"address": func(t testing.TB) { removeAddresses(t, heldVIP().slice()) },
	}
}

// guardTables returns the names of the guard's nf_tables tables.
func guardTables(t testing.TB) (all []string) {
	t.Helper()
	if !has("nft") {
		return nil
	}
	for line := range strings.Lines(run(t, "nft", "list", "tables")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "table "); ok && strings.HasSuffix(name, " vipd-guard") {
			all = append(all, name)
		}
	}
	return all
}

// scriptGuard returns a function that runs an nft script on both of the guard's tables, in one
// transaction. In the script, %s stands for the name of a table.
func scriptGuard(script string) func(t testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		tables := guardTables(t)
		if len(tables) == 0 {
			t.Skip("the guard has no table in nf_tables")
		}
		var lines strings.Builder
		for _, table := range tables {
			fmt.Fprintf(&lines, script+"\n", table)
		}
		pipe(t, lines.String(), "nft", "-f", "-")
	}
}

// removeEntry removes a VIP's entry from the guard's set of served frontends.
func removeEntry(t testing.TB, vip netip.Addr) {
	t.Helper()
	family := map[bool]string{true: "ip", false: "ip6"}[vip.Is4()]
	if slices.Contains(guardTables(t), family+" vipd-guard") {
		run(t, "nft", "delete", "element", family, "vipd-guard", "served", fmt.Sprintf("{ %s . tcp . %d }", vip, vipPort))
		return
	}
	t.Skipf("the guard lacks an entry for %s", vip)
}

// flushTables empties every chain in the tables nat, mangle and filter, as a firewall does when it
// restarts.
func (s *Subject) flushTables(t testing.TB) {
	t.Helper()
	s.hasChains(t)
	for _, restore := range s.tools("-restore") { // one command for both families, because a repair could happen between two commands
		pipe(t, "*nat\n-F\nCOMMIT\n*mangle\n-F\nCOMMIT\n*filter\n-F\nCOMMIT\n", restore, "--noflush", "--wait")
	}
}

// hasChains skips the test if iptables has none of vipd's chains.
func (s *Subject) hasChains(t testing.TB) {
	t.Helper()
	if len(s.ourChains(t, "")) == 0 {
		t.Skip("the dataplane has no chains in iptables")
	}
}

// flushChain flushes vipd's last non-empty chain in a table.
func (s *Subject) flushChain(t testing.TB, table string) {
	t.Helper()
	chains := slices.DeleteFunc(s.ourChains(t, table), func(c ourChain) bool { return !c.rules })
	if len(chains) == 0 {
		t.Skipf("the dataplane has no chain in table %s", table)
	}
	last := chains[len(chains)-1]
	run(t, last.tool, "-w", "-t", last.table, "-F", last.name)
}

// replaceRules replaces the first rule in every vipd chain of iptables. The new rule is DROP in the
// table filter, and RETURN in other tables. The number of rules does not change.
func (s *Subject) replaceRules(t testing.TB) {
	t.Helper()
	s.hasChains(t)
	restores := s.tools("-restore")
	for i, of := range s.tools("") { // one command per tool, because a repair could happen between two commands
		var lines strings.Builder
		last := ""
		s.saved(t, func(tool, table, line string) {
			words := strings.Fields(line)
			if tool != of || len(words) < 2 || words[0] != "-A" || !ownPrefix.MatchString(words[1]) || words[1] == last {
				return
			}
			last = words[1]
			target := map[bool]string{true: "DROP", false: "RETURN"}[table == "filter"]
			fmt.Fprintf(&lines, "*%s\n-R %s 1 -j %s\nCOMMIT\n", table, last, target)
		})
		pipe(t, lines.String(), restores[i], "--noflush", "--wait")
	}
}

// removeJumps removes all rules that jump to vipd's chains.
func (s *Subject) removeJumps(t testing.TB) {
	t.Helper()
	jumps := s.ourJumps(t)
	if len(jumps) == 0 {
		t.Skip("no iptables rule jumps to vipd's chains")
	}
	restores := s.tools("-restore")
	for i, tool := range s.tools("") { // one command per tool, because a repair could happen between two commands
		var lines strings.Builder
		for _, j := range jumps {
			if j.tool == tool {
				fmt.Fprintf(&lines, "*%s\n-D %s %s\nCOMMIT\n", j.table, j.chain, j.rule)
			}
		}
		pipe(t, lines.String(), restores[i], "--noflush", "--wait")
	}
}

// destroySets removes all ipsets. It removes all chains first, because their rules use the sets.
func (s *Subject) destroySets(t testing.TB) {
	t.Helper()
	if len(ourSets(t)) == 0 {
		t.Skip("the dataplane has no ipsets")
	}
	lab.Eventually(t, atOnce, "destroying sets before the next repair", func() error {
		for _, restore := range s.tools("-restore") {
			pipe(t, "*nat\nCOMMIT\n*mangle\nCOMMIT\n*filter\nCOMMIT\n", restore, "--wait") // without --noflush, this removes all rules and chains of these tables
		}
		if out, err := exec.Command("ipset", "destroy").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

func ourSets(t testing.TB) []string {
	t.Helper()
	lab.Need(t, "ipset")
	var ours []string
	for name := range strings.FieldsSeq(run(t, "ipset", "list", "-n")) {
		if ownPrefix.MatchString(name) {
			ours = append(ours, name)
		}
	}
	return ours
}

type ourChain struct {
	tool, table, name string
	rules             bool // whether the chain has rules
}

// ourChains returns vipd's chains in a table, for both families. If table is "", it returns vipd's
// chains in all tables.
func (s *Subject) ourChains(t testing.TB, table string) []ourChain {
	t.Helper()
	var all []ourChain
	s.saved(t, func(tool, in, line string) {
		name, declares := strings.CutPrefix(line, ":")
		words := strings.Fields(line)
		switch {
		case len(words) < 2 || table != "" && table != in:
		case declares && ownPrefix.MatchString(line):
			all = append(all, ourChain{tool: tool, table: in, name: strings.Fields(name)[0]})
		case words[0] == "-A":
			if i := slices.Index(all, ourChain{tool: tool, table: in, name: words[1]}); i >= 0 {
				all[i].rules = true
			}
		}
	})
	return all
}

// ourJump is a rule in a built-in chain that jumps to one of vipd's chains.
type ourJump struct {
	tool, table, chain string
	rule               string // the rule without "-A" and the name of its chain
}

func (s *Subject) ourJumps(t testing.TB) []ourJump {
	t.Helper()
	var all []ourJump
	s.saved(t, func(tool, table, line string) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "-A" {
			return
		}
		at := ourJump{tool: tool, table: table, chain: words[1]}
		if ownPrefix.MatchString(line) && !ownPrefix.MatchString(at.chain) {
			at.rule = strings.Join(words[2:], " ")
			all = append(all, at)
		}
	})
	return all
}

// saved calls f for each line that the iptables-save programs of both families print. The argument
// table is the line's table, and tool is the program that can change this table.
func (s *Subject) saved(t testing.TB, f func(tool, table, line string)) {
	t.Helper()
	savers := s.tools("-save")
	for i, tool := range s.tools("") {
		savedBy(t, savers[i], func(table, line string) { f(tool, table, line) })
	}
}

// savedBy is like saved, but for a single program. If the program is missing, it does nothing.
func savedBy(t testing.TB, saver string, f func(table, line string)) {
	t.Helper()
	if !has(saver) {
		return
	}
	table := ""
	for line := range strings.Lines(run(t, saver)) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = strings.TrimSpace(name)
		}
		f(table, line)
	}
}

// removeAddresses removes VIPs from the host's devices. If vips is nil, it removes all VIPs.
func removeAddresses(t testing.TB, vips []netip.Addr) {
	t.Helper()
	all := heldVIPs(t)
	if vips != nil {
		all = slices.DeleteFunc(all, func(h held) bool {
			a, _ := netip.AddrFromSlice(h.IP)
			return !slices.Contains(vips, a.Unmap())
		})
	}
	if len(all) == 0 {
		t.Fatal("no device has a VIP")
	}
	for _, h := range all {
		if err := netlink.AddrDel(h.link, &h.Addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Fatalf("removing %s from %s: %v", h.IPNet, h.link.Attrs().Name, err)
		}
	}
}

// held is a VIP on a device.
type held struct {
	netlink.Addr
	link netlink.Link
}

func heldVIPs(t testing.TB) []held {
	t.Helper()
	var all []held
	for _, link := range listed(t, netlink.LinkList) {
		for _, a := range listed(t, func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) }) {
			if isVIP(a.IP) {
				all = append(all, held{a, link})
			}
		}
	}
	return all
}

// listed returns the result of list, which reads from the kernel. If the data changes during the
// call, list fails and is called again.
func listed[T any](t testing.TB, list func() ([]T, error)) (all []T) {
	t.Helper()
	lab.Eventually(t, settleTime, "a listing during which nothing changes", func() (err error) {
		all, err = list()
		return err
	})
	return all
}

func isVIP(ip []byte) bool {
	a, ok := netip.AddrFromSlice(ip)
	return ok && slices.ContainsFunc(vipRanges[:], func(vips string) bool { return netip.MustParsePrefix(vips).Contains(a.Unmap()) })
}
