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

// acceptor makes iptables filters, such as Docker's or ufw's, accept our connections, because no
// nf_tables table can accept a packet that such a filter drops. It maintains three chains while
// iptables has filters, and checks regularly whether filters have appeared. For other firewalls,
// administrators must add rules; doctor names these firewalls.
type acceptor struct {
	family inet.Family
	bits   markBits
	conn   *nft.Conn
	// find searches for iptables. tool is its last result, or nil if there is none.
	find func(context.Context) (filterTool, error)
	tool filterTool

	// mode is the mode for which the rules are written. settled reports whether the rules are in
	// the kernel or are not needed.
	mode    acceptMode
	settled bool
	// hashes holds the fingerprints of our chains and of the base chains, as read after the last
	// write. It is nil if no filters exist or the last write failed.
	hashes map[string]xtables.ChainHash
	// damaged holds the fingerprint of a chain of ours that another program has changed. It is nil
	// after a successful write.
	damaged map[string]xtables.ChainHash
	look    xtables.Look
	// fault is the error from the last write of the rules, or nil. due is the time of the next
	// attempt.
	fault error
	due   time.Time
	pause time.Duration
}

// acceptMode is the part of the mode's requirements that affects the rules.
type acceptMode struct {
	// localIn reports whether virtual servers forward packets. direct reports whether any frontend
	// is direct. Packets of direct frontends are not tracked.
	localIn, direct bool
}

// filterTool reads and writes filters. [xtables.Tool] implements it.
type filterTool interface {
	Restore(ctx context.Context, input string) error
	Rules(ctx context.Context, table, chain string) ([]string, error)
	ChainExists(ctx context.Context, table, chain string) (bool, error)
	Stamp(table string) (xtables.Stamp, error)
	Commits() uint32
	ChainHashes(ctx context.Context, table, prefix string, chains []string) (map[string]xtables.ChainHash, error)
}

var _ filterTool = (*xtables.Tool)(nil)

// filterTable is the iptables table that contains the acceptor's rules. ourPrefix is the name
// prefix of vipd's chains.
const (
	filterTable = "filter"
	ourPrefix   = "VIPD-"
)

// These are the minimum and maximum pause before the acceptor retries rules that iptables refused.
const minAcceptPause, maxAcceptPause = time.Second, time.Minute

func newAcceptor(of inet.Family, o Options) *acceptor {
	return &acceptor{family: of, bits: newMarkBits(o.MasqueradeBit), look: xtables.Contents(), find: func(ctx context.Context) (filterTool, error) {
		t, err := xtables.Find(ctx, of, o.Variant, o.Log)
		if err != nil {
			return nil, err // an interface that holds a nil *xtables.Tool is not nil
		}
		return t, nil
	}}
}

// filtered reports whether iptables has filters in either variant. Filters exist once any program
// has used them. A table with that name but without the filters' chains belongs to another program.
func (a *acceptor) filtered() (bool, error) {
	table, names := nft.Table{Family: nft.IPv4, Name: filterTable}, "/proc/net/ip_tables_names"
	if a.family == inet.IPv6 {
		table.Family, names = nft.IPv6, "/proc/net/ip6_tables_names"
	}
	for _, chain := range []string{"FORWARD", "INPUT"} { // the kernel would list the chains of all tables
		there, err := a.conn.HasChain(table, chain)
		if err != nil {
			return false, fmt.Errorf("looking for iptables' filters: %w", err)
		}
		if there {
			return true, nil
		}
	}
	text, err := os.ReadFile(names) // missing if the kernel has no legacy iptables
	return err == nil && slices.Contains(strings.Fields(string(text)), filterTable), nil
}

// establish writes the rules if filters exist. Services may work without the rules, so establish
// does not return the error of a failed write. It records the error in fault, and a later call
// retries the write.
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
	if !filtered { // intact writes the rules when filters appear
		a.settled, a.hashes, a.fault = true, nil, nil
		return nil
	}
	if err = a.write(ctx); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	a.noteOutcome(err)
	return nil
}

func (a *acceptor) noteOutcome(err error) {
	a.settled, a.fault = err == nil, err
	if err == nil {
		a.pause, a.damaged = 0, nil
		return
	}
	a.pause = min(max(2*a.pause, minAcceptPause), maxAcceptPause)
	a.hashes, a.due = nil, time.Now().Add(a.pause)
}

// write replaces our chains and jumps in one transaction. It then verifies that iptables has them.
func (a *acceptor) write(ctx context.Context) (err error) {
	if a.tool == nil {
		if a.tool, err = a.find(ctx); err != nil {
			return err
		}
	}
	chains, jumps := a.chains(), a.jumps()
	lines, err := jumpLines(ctx, a.tool, filterTable, jumps, chainNames(chains))
	if err != nil {
		return err
	}
	if err := a.tool.Restore(ctx, xtables.Input(filterTable, chains, lines...)); err != nil {
		return err
	}
	prints, err := a.tool.ChainHashes(ctx, filterTable, ourPrefix, append(slices.Collect(maps.Keys(jumps)), chainNames(chains)...))
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
			return fmt.Errorf("chain %s of table %s lacks a jump that vipd has just written: another program is changing the chain", base, filterTable)
		}
	}
	a.hashes, a.look = prints, xtables.Contents()
	return nil
}

func chainNames(chains []xtables.Chain) (all []string) {
	for _, c := range chains {
		all = append(all, c.Name)
	}
	return all
}

// jumpLines returns lines for iptables-restore that add each jump to its base chain, and remove all
// other rules that jump to our chains. If a jump is empty, they only remove rules.
func jumpLines(ctx context.Context, tool filterTool, table string, jumps map[string]string, ours []string) (lines []string, err error) {
	for _, base := range slices.Sorted(maps.Keys(jumps)) {
		rules, err := tool.Rules(ctx, table, base)
		if err != nil {
			return nil, err
		}
		lines = append(lines, xtables.Join(rules, base, jumps[base], ours...)...)
	}
	return lines, nil
}

// leave removes our chains and jumps from iptables.
func (a *acceptor) leave(ctx context.Context) error {
	filtered, err := a.filtered()
	if err != nil || !filtered {
		return err
	}
	if a.tool == nil {
		if a.tool, err = a.find(ctx); err != nil {
			return nil //nolint:nilerr // without iptables we have no rules; cleanup removes leftovers
		}
	}
	if _, err = removeChains(ctx, a.tool, filterTable, slices.Collect(maps.Keys(a.jumps())), chainNames(a.chains()), false); err == nil {
		a.settled, a.hashes, a.fault = false, nil, nil
	} else if xtables.IsIncompatible(err) {
		return nil // iptables can't change a table that "nft -f" loaded, so a retry would not help
	}
	return err
}

// retry writes the rules again if the last write failed and its pause is over. It reports whether
// the rules were written.
func (a *acceptor) retry(ctx context.Context) bool {
	if a.fault == nil || time.Now().Before(a.due) {
		return false
	}
	err := a.establish(ctx, a.mode.localIn, a.mode.direct)
	return err == nil && a.fault == nil
}

// intact repairs rules that other programs have changed, and describes the change. If filters have
// appeared, it only reports this, and establish writes the rules. It returns "" if nothing has
// changed.
func (a *acceptor) intact(ctx context.Context) (string, error) {
	if !a.settled { // establish will write the rules
		return "", nil
	}
	filtered, err := a.filtered()
	switch {
	case err != nil:
		return "", err
	case filtered && a.hashes == nil:
		return "iptables now has filter rules", nil
	case !filtered: // the filters were removed together with our rules
		a.hashes = nil
		return "", nil
	}
	reason, err := a.look.Probe(a.tool, filterTable, a.minEntries, func() (string, error) { return a.compare(ctx) })
	if reason == "" {
		return "", err
	}
	if err := a.write(ctx); err != nil { // a failed repair is reported as a problem
		a.noteOutcome(err)
		return "", ctx.Err()
	}
	a.noteOutcome(nil)
	return fmt.Sprintf("table %s (%s): %s", filterTable, a.family, reason), nil
}

// compare describes a chain that differs from its fingerprint in hashes, or returns "".
func (a *acceptor) compare(ctx context.Context) (string, error) {
	names := slices.Sorted(maps.Keys(a.hashes))
	now, err := a.tool.ChainHashes(ctx, filterTable, ourPrefix, names)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if now[name] != a.hashes[name] {
			if strings.HasPrefix(name, ourPrefix) {
				a.damaged = map[string]xtables.ChainHash{name: now[name]}
			}
			return "rules of chain " + name + " were changed", nil
		}
	}
	return "", nil
}

// minEntries returns the minimum number of entries in a table of iptables-legacy that contains the
// chains in hashes. Each rule is an entry.
func (a *acceptor) minEntries() (n int) {
	for _, p := range a.hashes {
		n += p.Rules
	}
	return n
}

// resync makes the next establish search for iptables again, and write all rules.
func (a *acceptor) resync() {
	a.tool, a.settled, a.due = nil, false, time.Time{}
}

func (a *acceptor) chains() []xtables.Chain {
	// The rules never negate a match on the mark. A negated match would also match packets that do
	// not belong to a connection.
	ours := "-m connmark --mark " + valueMask(a.bits.ours) + " "
	arriving, leaving := []string{ours + "-j ACCEPT"}, []string(nil)
	if a.mode.localIn { // virtual servers send packets through OUTPUT; other filters handle packets from this host's programs
		leaving = []string{ours + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", ours + "-m addrtype ! --src-type LOCAL -j ACCEPT"}
	}
	if a.mode.direct {
		direct := "-m mark --mark " + valueMask(a.bits.ours) + " -j ACCEPT"
		arriving, leaving = append(arriving, direct), append(leaving, direct)
	}
	return []xtables.Chain{
		xtables.NewChain("VIPD-FORWARD", "-j ACCEPT"), xtables.NewChain("VIPD-INPUT", arriving...), xtables.NewChain("VIPD-OUTPUT", leaving...),
	}
}

// jumps maps each base chain to its rule that jumps to our chain. The base chains are the same in
// every mode.
func (a *acceptor) jumps() map[string]string {
	marked := "-m connmark --mark " + valueMask(a.bits.ours) + " "
	to := marked
	if a.mode.direct { // untracked packets do not belong to a connection
		to = ""
	}
	return map[string]string{"FORWARD": marked + "-j VIPD-FORWARD", "INPUT": to + "-j VIPD-INPUT", "OUTPUT": to + "-j VIPD-OUTPUT"}
}

// isUnavailable reports whether err means that the host lacks iptables, or that this process may
// not use it.
func isUnavailable(err error) bool {
	var unsupported *xtables.UnsupportedError
	return errors.As(err, &unsupported) || errors.Is(err, os.ErrPermission)
}
