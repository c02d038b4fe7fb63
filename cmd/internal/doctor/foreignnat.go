package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// readNAT reads other programs' rules in the nat table, unless it has already read the table. It
// follows jumps from PREROUTING and OUTPUT, and skips vipd's and kube-proxy's chains, which may
// have rules for each service.
func (b *iptablesRules) readNAT(ctx context.Context, o *observed) {
	if b.tables["nat"] != nil || b.kind == config.LegacyBackend && !slices.Contains(o.legacyTables(b.family), "nat") {
		return
	}
	b.tables["nat"] = map[string]*chain{}
	names := []string{"PREROUTING", "OUTPUT"}
	for i := 0; i < len(names) && i < maxFollowed; i++ {
		listed, err := o.Run(ctx, b.program, "-w", "-t", "nat", "-S", names[i])
		if err != nil {
			continue // the chain was removed since it was listed
		}
		c := &chain{}
		b.tables["nat"][names[i]] = c
		for line := range strings.Lines(listed) {
			rule, isRule := strings.CutPrefix(strings.TrimSpace(line), "-A "+names[i]+" ")
			if !isRule {
				continue
			}
			c.rules = append(c.rules, rule)
			if to := target(rule); !isTarget(to) && !slices.Contains(names, to) {
				names = append(names, to)
			}
		}
	}
}

// isTarget reports whether readNAT must not follow a jump to the target, because the target is not
// a chain, or is one of vipd's or kube-proxy's chains.
func isTarget(to string) bool {
	targets := []string{"", "ACCEPT", "DROP", "RETURN", "DNAT", "SNAT", "REDIRECT", "MASQUERADE", "NETMAP", "LOG", "NFLOG", "MARK", "CONNMARK"}
	return slices.Contains(targets, to) || strings.HasPrefix(to, "VIPD-") || strings.HasPrefix(to, "KUBE-")
}

// sees reports whether the rule applies to a's address family.
func (f *foreignRule) sees(a netip.Addr) bool {
	return f.family == "inet" || (f.family == "ip") == a.Is4()
}

// named returns the frontends for which the rule matches at least one sample packet, each with its
// service. The function packets returns a frontend's sample packets.
func (f *foreignRule) named(o *observed, packets func(Frontend) []sample) (names []string) {
	for _, at := range o.Frontends {
		if !f.sees(at.Addr) {
			continue
		}
		for _, p := range packets(at) {
			if f.match(p) {
				names = append(names, fmt.Sprintf("%s (%s)", at.Key, at.Service))
				break
			}
		}
	}
	return names
}

// toVIP returns a sample packet from a client to the frontend.
func toVIP(f Frontend) []sample {
	return []sample{{to: f.Key}}
}

// bothWays returns sample packets in both directions: from a client to the frontend, and replies
// from the frontend and from its endpoints.
func bothWays(f Frontend) []sample {
	all := append(toVIP(f), sample{from: f.Key})
	for _, b := range f.Backends {
		all = append(all, sample{from: f.portsOf(b)})
	}
	return all
}

// forwarded returns bothWays's samples, and also packets to the endpoints, as the forward and
// postrouting hooks see them.
func forwarded(f Frontend) []sample {
	all := bothWays(f)
	for _, b := range f.Backends {
		all = append(all, sample{to: f.portsOf(b)})
	}
	return all
}

// grade returns a finding about the rule. It is a problem if all of the rule's conditions are
// known, and otherwise a warning.
func (f *foreignRule) grade(what, why string) Finding {
	if f.more {
		return warning(what, why+" if they match the rule's other conditions", f.remove)
	}
	return problem(what, why, f.remove)
}

// translatesFirst reports whether the rule translates connections to VIPs before the mode in use
// does.
func (f *foreignRule) translatesFirst(o *observed) bool {
	if f.hook != "prerouting" && f.hook != "output" {
		return false
	}
	switch mode := o.mode().Name; {
	case mode == config.NFTablesMode:
		return f.priority < -105
	case mode == config.UserspaceMode && !o.binds():
		return f.priority < -103
	case mode == config.IPTablesMode:
		return f.priority < natTablePriority || f.priority == natTablePriority && f.first
	}
	return true // virtual servers and sockets receive the translated packet
}

// checkTranslations looks for other programs' rules that translate connections to VIPs before vipd
// does.
func checkTranslations(_ context.Context, o *observed) (found []Finding) {
	for _, f := range o.foreign {
		if !f.translates || !f.translatesFirst(o) {
			continue
		}
		if to := f.named(o, toVIP); len(to) > 0 {
			found = append(found, f.grade(fmt.Sprintf("another program's rule translates connections to %s before vipd (%s)", list(to), f.where),
				"only the first matching rule translates a connection"))
		}
	}
	return found
}

// checkTracking looks for other programs' rules that exempt connections to VIPs from connection
// tracking.
func checkTracking(_ context.Context, o *observed) (found []Finding) {
	if o.binds() {
		return nil // vipd listens on the VIPs, so the kernel translates nothing
	}
	for _, f := range o.foreign {
		if !f.untracks {
			continue
		}
		if affected := f.named(o, bothWays); len(affected) > 0 {
			found = append(found, f.grade(fmt.Sprintf("another program's rule excludes connections to %s from tracking (%s)", list(affected), f.where),
				"the kernel translates only tracked connections, so these get no answer"))
		}
	}
	return found
}

// marksLate reports whether the rule changes a connection's mark after vipd has set it. vipd reads
// the mark at the first packet, so earlier changes don't matter.
func (f *foreignRule) marksLate() bool {
	const sorting, source = -110, 96 // priorities of the guard's chains
	switch f.hook {
	case "prerouting", "output":
		return f.priority > sorting
	case "postrouting":
		return f.priority < source
	}
	return true
}

// checkMarks looks for other programs' rules that change connection mark bits that vipd uses.
func checkMarks(_ context.Context, o *observed) (found []Finding) {
	ours := uint32(0)
	for i := range 3 {
		ours |= 1 << ((o.Config.IPTables.MasqueradeBit + i) % 32)
	}
	for _, f := range o.foreign {
		if f.overwrites&ours == 0 || !f.marksLate() || f.unmarked || len(f.named(o, forwarded)) == 0 {
			continue
		}
		found = append(found, warning(fmt.Sprintf("another program's rule changes marks that vipd uses (%s)", f.where),
			fmt.Sprintf("vipd marks connections to VIPs with the bits %#x, so some get no answer. Give the rule a mask without these bits, "+
				"or set iptables.masquerade_bit to another bit", ours), f.remove))
	}
	return found
}
