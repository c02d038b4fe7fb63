package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

// need is an iptables match extension that vipd's rules use. match is its name in the kernel, and
// loss is the effect if the kernel lacks it.
type need struct {
	match string
	// by reports whether a mode needs the match.
	by   func(modes.Mode) bool
	loss string
}

func needs() []need {
	every := func(modes.Mode) bool { return true }
	only := func(name config.ModeName) func(modes.Mode) bool {
		return func(m modes.Mode) bool { return m.Name == name }
	}
	return []need{
		{"connmark", every, "without it, an iptables policy of DROP also stops connections to services"},
		{"conntrack", only(config.IPTablesMode), "without it, iptables mode can't keep connections on their endpoints"},
		{"set", only(config.IPTablesMode), "without sets of addresses, iptables mode does not work"},
		{"statistic", only(config.IPTablesMode), "without it, connections can't be spread over endpoints"},
		{"bpf", only(config.IPTablesMode), "without it, the schedulers sh and mh choose at random"},
		{"addrtype", only(config.IPVSMode), "without it, a policy of DROP in OUTPUT also stops packets that virtual servers forward"},
	}
}

// checkMatches checks whether the kernel has the matches that the mode's rules need. A match counts
// if it is loaded, or if it is in a module that can be loaded.
func checkMatches(_ context.Context, o *observed) (found []Finding) {
	text, err := o.ReadFile("/proc/thread-self/net/ip_tables_matches")
	if err != nil {
		return []Finding{note("the kernel's iptables matches can't be listed: "+oneLine(err), "", "sudo vipctl doctor")}
	}
	matches := strings.Fields(string(text))
	var present []string
	for _, n := range needs() {
		switch {
		case !n.by(o.mode()):
		case slices.Contains(matches, n.match), o.module("xt_"+n.match) != unseen:
			present = append(present, "xt_"+n.match)
		default:
			found = append(found, warning(fmt.Sprintf("the kernel does not list the match xt_%s", n.match), n.loss, "modprobe xt_"+n.match))
		}
	}
	if len(present) > 0 {
		found = append(found, fine("the kernel has the matches that rules need: "+strings.Join(present, ", ")))
	}
	return found
}

// checkConntrackTable checks whether the connection tracking table is nearly full.
func checkConntrackTable(_ context.Context, o *observed) []Finding {
	var count, limit int
	_, errCount := fmt.Sscan(o.sysctl("net.netfilter.nf_conntrack_count"), &count)
	_, errLimit := fmt.Sscan(o.sysctl("net.netfilter.nf_conntrack_max"), &limit)
	if errCount != nil || errLimit != nil {
		return []Finding{note("the kernel's connection tracking is not loaded", "it is loaded when rules need it", "")}
	}
	f := fine(fmt.Sprintf("connection tracking has %d of %d entries in use", count, limit))
	if limit > 0 && count >= limit/10*8 {
		f.Level = Warning
		f.Why = "when it is full, the kernel drops new connections of the whole host"
		f.Fix = fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*limit)
	}
	return []Finding{f}
}
