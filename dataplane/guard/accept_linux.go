package guard

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/xtables"
)

// acceptor lets our connections through the filters of iptables: what a chain of those drops, no table of nf_tables can accept.
// It is there where iptables has filters, for which it looks again whenever rules change. Other firewalls have to be
// told by their administrators, which doctor says.
type acceptor struct {
	*legacy
	conn *nft.Conn
}

// newAcceptor has the rules that accept, and no sets, in the guard of a family.
func newAcceptor(w *wanted, o Options, conn *nft.Conn) *acceptor {
	l := &legacy{wanted: w, tool: o.tool(w.family), others: otherTools(w.family), watch: newWatch(), plan: plan{family: w.family, bits: w.bits}}
	l.parts = []*part{{def: partDef{name: verdictsPart, table: "filter", chains: acceptChains, jumps: acceptJumps}}}
	return &acceptor{legacy: l, conn: conn}
}

// filtered reports whether iptables has filters, in either variant: they are there as soon as a program has asked for them. A
// table of that name without its chains is another program's.
func (a *acceptor) filtered() (bool, error) {
	table, names := nft.Table{Family: nft.IPv4, Name: "filter"}, "/proc/net/ip_tables_names"
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
	text, err := os.ReadFile(names) // absent where the kernel has no legacy iptables
	return err == nil && slices.Contains(strings.Fields(string(text)), "filter"), nil
}

// establish puts up the rules where there are filters. That iptables is not there is no error, for services may work without:
// see failed.
func (a *acceptor) establish(ctx context.Context, directed bool) error {
	if a.plan.mode != a.mode || a.plan.directed != directed {
		a.plan.mode, a.plan.directed, a.stale = a.mode, directed, true
	}
	if a.looked && !a.stale {
		return nil
	}
	filtered, err := a.filtered()
	if err != nil {
		return err
	}
	if !filtered { // all is put up when there are filters, see intact
		a.looked, a.stale, a.ready = true, false, false
		return nil
	}
	if !isUnsupported(a.missing) {
		a.missing = nil
	}
	tool, err := a.rules(ctx)
	if err == nil {
		err = a.bringAll(ctx, tool)
	}
	if err != nil && !isUnsupported(err) {
		a.forget() // the next try writes all again
		return fmt.Errorf("having iptables accept our connections: %w", err)
	}
	a.missing, a.looked, a.stale, a.ready = err, true, false, err == nil
	return nil
}

// leave removes the rules.
func (a *acceptor) leave(ctx context.Context) error {
	if filtered, err := a.filtered(); err != nil || !filtered {
		return err
	}
	tool, err := a.rules(ctx)
	if err == nil {
		err = a.removeRules(ctx, tool)
	}
	if err != nil && !isUnsupported(err) {
		return err
	}
	a.ready, a.looked = false, false
	return nil
}

// intact says what others have changed, or that there are filters now.
func (a *acceptor) intact(ctx context.Context) (string, error) {
	if a.missing != nil {
		return "", nil
	}
	if !a.looked { // establish is due
		return "", nil
	}
	filtered, err := a.filtered()
	switch {
	case err != nil:
		return "", err
	case filtered && !a.ready:
		return "iptables has filters now", nil
	case !filtered && a.ready: // they went, with our rules
		a.forget()
		a.looked = true
	case filtered:
		return a.rulesIntact(ctx)
	}
	return "", nil
}

// failed is why our connections may be dropped; nil means they are not.
func (a *acceptor) failed() error {
	if a.missing != nil {
		return a.missing
	}
	return a.parts[0].failed
}

func acceptChains(p *plan) []xtables.Chain {
	// A match that does not want the mark would hold for packets without a connection.
	ours := "-m connmark --mark " + both(p.bits.ours) + " "
	arriving, leaving := []string{ours + "-j ACCEPT"}, []string(nil)
	if p.mode.LocalIn { // what virtual servers forward goes out here; what programs of this host begin is for others to judge
		leaving = []string{ours + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", ours + "-m addrtype ! --src-type LOCAL -j ACCEPT"}
	}
	if p.directed {
		direct := "-m mark --mark " + both(p.bits.ours) + " -j ACCEPT"
		arriving, leaving = append(arriving, direct), append(leaving, direct)
	}
	return []xtables.Chain{
		xtables.NewChain("VIPD-FORWARD", "-j ACCEPT"), xtables.NewChain("VIPD-INPUT", arriving...), xtables.NewChain("VIPD-OUTPUT", leaving...),
	}
}

// acceptJumps are one of each base chain, whatever the mode: where one is not needed its chain is empty.
func acceptJumps(p *plan) []jump {
	marked := "-m connmark --mark " + both(p.bits.ours) + " "
	to := marked
	if p.directed { // untracked packets have no connection
		to = ""
	}
	return []jump{{"FORWARD", marked + "-j VIPD-FORWARD"}, {"INPUT", to + "-j VIPD-INPUT"}, {"OUTPUT", to + "-j VIPD-OUTPUT"}}
}
