package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/xtables"
)

// acceptor lets our connections through the filters of iptables, such as Docker's or ufw's: what a chain of those drops, no
// table of nf_tables can accept. It keeps three chains there if iptables has filters, for which it looks again whenever rules
// change. Other firewalls have to be told by their administrators, which doctor says.
type acceptor struct {
	family inet.Family
	bits   markBits
	conn   *nft.Conn
	// find finds iptables. tool is the last answer; nil means there is none.
	find func(context.Context) (filterTool, error)
	tool filterTool

	// mode is what the rules are for, and settled reports whether the kernel has them, or needs none.
	mode    acceptMode
	settled bool
	// prints are the fingerprints of the chains as they were written; nil means that there are no filters, or no rules in them.
	prints map[string]xtables.Print
	// damaged are the fingerprints of our chains that another program has changed, until they are written again.
	damaged map[string]xtables.Print
	look    xtables.Look
	// fault is why our connections may be dropped, and due when the rules are tried again.
	fault error
	due   time.Time
	pause time.Duration
}

// acceptMode is what the rules depend on.
type acceptMode struct {
	// localIn reports whether virtual servers forward, and direct whether packets are passed on untracked.
	localIn, direct bool
}

// filterTool is what reads and writes filters; *xtables.Tool does it.
type filterTool interface {
	Restore(ctx context.Context, input string) error
	Rules(ctx context.Context, table, chain string) ([]string, error)
	ChainExists(ctx context.Context, table, chain string) (bool, error)
	Stamp(table string) (xtables.Stamp, error)
	Commits() uint32
	Prints(ctx context.Context, table, prefix string, chains []string) (map[string]xtables.Print, error)
}

var _ filterTool = (*xtables.Tool)(nil)

// filterTable is the table of the rules, and ourPrefix begins the names of our chains.
const (
	filterTable = "filter"
	ourPrefix   = "VIPD-"
)

// The pauses between two attempts at rules that iptables refuses.
const firstAcceptPause, longestAcceptPause = time.Second, time.Minute

func newAcceptor(of inet.Family, o Options) *acceptor {
	return &acceptor{family: of, bits: newMarkBits(o.MasqueradeBit), look: xtables.Contents(), find: func(ctx context.Context) (filterTool, error) {
		t, err := xtables.Find(ctx, of, o.Variant, o.Log)
		if err != nil {
			return nil, err // a nil *xtables.Tool in an interface would not be nil
		}
		return t, nil
	}}
}

// filtered reports whether iptables has filters, in either variant: they exist as soon as a program has asked for them. A
// table of that name without its chains is another program's.
func (a *acceptor) filtered() (bool, error) {
	table, names := nft.Table{Family: nft.IPv4, Name: filterTable}, "/proc/net/ip_tables_names"
	if a.family == inet.IPv6 {
		table.Family, names = nft.IPv6, "/proc/net/ip6_tables_names"
	}
	chains, err := a.conn.Chains(table)
	if err != nil {
		return false, fmt.Errorf("looking for iptables' filters: %w", err)
	}
	if slices.ContainsFunc(chains, func(c nft.Found) bool { return c.Name == "FORWARD" || c.Name == "INPUT" }) {
		return true, nil
	}
	text, err := os.ReadFile(names) // absent if the kernel has no legacy iptables
	return err == nil && slices.Contains(strings.Fields(string(text)), filterTable), nil
}

// establish writes the rules if there are filters. A refusal is no error, because services may work without the rules: it is kept
// as the fault, and tried again.
func (a *acceptor) establish(ctx context.Context, localIn, direct bool) error {
	mode := acceptMode{localIn: localIn, direct: direct}
	if a.mode == mode && (a.settled || a.fault != nil && time.Now().Before(a.due)) {
		return nil
	}
	a.mode, a.settled = mode, false
	filtered, err := a.filtered()
	if err != nil {
		return err
	}
	if !filtered { // the rules are written when there are filters, see intact
		a.settled, a.prints, a.fault = true, nil, nil
		return nil
	}
	if err = a.write(ctx); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	a.note(err)
	return nil
}

// note keeps the outcome of writing.
func (a *acceptor) note(err error) {
	a.settled, a.fault = err == nil, err
	if err == nil {
		a.pause, a.damaged = 0, nil
		return
	}
	a.pause = min(max(2*a.pause, firstAcceptPause), longestAcceptPause)
	a.prints, a.due = nil, time.Now().Add(a.pause)
}

// write puts chains and jumps in the place of whatever there is of them, in one transaction, and proves that they are there.
func (a *acceptor) write(ctx context.Context) (err error) {
	if a.tool == nil {
		if a.tool, err = a.find(ctx); err != nil {
			return err
		}
	}
	chains, jumps := a.chains(), a.jumps()
	lines, err := joins(ctx, a.tool, filterTable, jumps, names(chains))
	if err != nil {
		return err
	}
	if err := a.tool.Restore(ctx, xtables.Input(filterTable, chains, lines...)); err != nil {
		return err
	}
	prints, err := a.tool.Prints(ctx, filterTable, ourPrefix, append(slices.Collect(maps.Keys(jumps)), names(chains)...))
	if err != nil {
		return err
	}
	for _, c := range chains {
		got := prints[c.Name]
		if was, damaged := a.damaged[c.Name]; got.Rules != len(c.Rules) || damaged && got == was {
			return xtables.NotWritten(filterTable, c.Name, got)
		}
	}
	for base := range jumps {
		if prints[base].Rules == 0 {
			return fmt.Errorf("chain %s of table %s lacks a jump that was just written: another program is changing it at the same time", base, filterTable)
		}
	}
	a.prints, a.look = prints, xtables.Contents()
	return nil
}

// names are the names of chains.
func names(chains []xtables.Chain) (all []string) {
	for _, c := range chains {
		all = append(all, c.Name)
	}
	return all
}

// joins are the lines that make jumps, by their base chains, the only rules of those that lead to any of our chains. The empty
// jump removes them.
func joins(ctx context.Context, tool filterTool, table string, jumps map[string]string, ours []string) (lines []string, err error) {
	for _, base := range slices.Sorted(maps.Keys(jumps)) {
		rules, err := tool.Rules(ctx, table, base)
		if err != nil {
			return nil, err
		}
		lines = append(lines, xtables.Join(rules, base, jumps[base], ours...)...)
	}
	return lines, nil
}

// leave removes the rules.
func (a *acceptor) leave(ctx context.Context) error {
	filtered, err := a.filtered()
	if err != nil || !filtered {
		return err
	}
	if a.tool == nil {
		if a.tool, err = a.find(ctx); err != nil {
			return nil //nolint:nilerr // without iptables there are no rules of ours, and what is left of them is for cleanup
		}
	}
	if _, err = removeChains(ctx, a.tool, filterTable, slices.Collect(maps.Keys(a.jumps())), names(a.chains()), false); err == nil {
		a.settled, a.prints, a.fault = false, nil, nil
	} else if strings.Contains(err.Error(), "is incompatible, use 'nft' tool") {
		return nil // nft -f has loaded the table: iptables can't change it, and trying again does not help
	}
	return err
}

// retry writes again what was refused and is due, and reports whether it was accepted.
func (a *acceptor) retry(ctx context.Context) bool {
	if a.fault == nil || time.Now().Before(a.due) {
		return false
	}
	err := a.establish(ctx, a.mode.localIn, a.mode.direct)
	return err == nil && a.fault == nil
}

// intact repairs rules that other programs have changed and returns which ones they were, or that there are filters now.
func (a *acceptor) intact(ctx context.Context) (string, error) {
	if !a.settled { // establish is due
		return "", nil
	}
	filtered, err := a.filtered()
	switch {
	case err != nil:
		return "", err
	case filtered && a.prints == nil:
		return "iptables has filters now", nil
	case !filtered: // they are gone, with our rules
		a.prints = nil
		return "", nil
	}
	reason, err := a.look.Probe(a.tool, filterTable, a.entries, func() (string, error) { return a.compare(ctx) })
	if reason == "" {
		return "", err
	}
	if err := a.write(ctx); err != nil { // a repair that fails is a problem, and not a repair
		a.note(err)
		return "", ctx.Err()
	}
	a.note(nil)
	return fmt.Sprintf("table %s (%s): %s", filterTable, a.family, reason), nil
}

// compare returns which chain has other rules than when it was written.
func (a *acceptor) compare(ctx context.Context) (string, error) {
	names := slices.Sorted(maps.Keys(a.prints))
	now, err := a.tool.Prints(ctx, filterTable, ourPrefix, names)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if now[name] != a.prints[name] {
			if strings.HasPrefix(name, ourPrefix) {
				a.damaged = map[string]xtables.Print{name: now[name]}
			}
			return "rules of chain " + name + " were changed", nil
		}
	}
	return "", nil
}

// entries is how many entries of a table of the legacy variant the chains need at least: a rule is one.
func (a *acceptor) entries() (n int) {
	for _, p := range a.prints {
		n += p.Rules
	}
	return n
}

// resync makes the next establish write all again, with an iptables that it looks for again.
func (a *acceptor) resync() {
	a.tool, a.settled, a.due = nil, false, time.Time{}
}

func (a *acceptor) chains() []xtables.Chain {
	// A match that does not want the mark would hold for packets without a connection.
	ours := "-m connmark --mark " + both(a.bits.ours) + " "
	arriving, leaving := []string{ours + "-j ACCEPT"}, []string(nil)
	if a.mode.localIn { // what virtual servers forward goes out here; what programs of this host begin is for others to judge
		leaving = []string{ours + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", ours + "-m addrtype ! --src-type LOCAL -j ACCEPT"}
	}
	if a.mode.direct {
		direct := "-m mark --mark " + both(a.bits.ours) + " -j ACCEPT"
		arriving, leaving = append(arriving, direct), append(leaving, direct)
	}
	return []xtables.Chain{
		xtables.NewChain("VIPD-FORWARD", "-j ACCEPT"), xtables.NewChain("VIPD-INPUT", arriving...), xtables.NewChain("VIPD-OUTPUT", leaving...),
	}
}

// jumps are one of each base chain, whatever the mode: a chain that is not needed is empty.
func (a *acceptor) jumps() map[string]string {
	marked := "-m connmark --mark " + both(a.bits.ours) + " "
	to := marked
	if a.mode.direct { // untracked packets have no connection
		to = ""
	}
	return map[string]string{"FORWARD": marked + "-j VIPD-FORWARD", "INPUT": to + "-j VIPD-INPUT", "OUTPUT": to + "-j VIPD-OUTPUT"}
}

// isUnavailable reports whether err says that the host can't have it.
func isUnavailable(err error) bool {
	var unsupported *xtables.UnsupportedError
	return errors.As(err, &unsupported) || errors.Is(err, os.ErrPermission)
}
