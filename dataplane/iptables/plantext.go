package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// Render returns the frontends' rules in an empty nat table, as input for iptables-restore and
// ip6tables-restore. The sets for affinity precede them, as input for ipset restore. mark is
// Options.Mark.
func Render(frontends []*balancer.Frontend, mark string) string {
	var b strings.Builder
	for _, family := range inet.Families() {
		var own []*balancer.Frontend
		for _, f := range frontends {
			if inet.Of(f.Addr) == family {
				own = append(own, f)
			}
		}
		if len(own) > 0 {
			renderFamily(&b, own, mark)
		}
	}
	return b.String()
}

func renderFamily(b *strings.Builder, frontends []*balancer.Frontend, mark string) {
	slices.SortFunc(frontends, func(f, g *balancer.Frontend) int { return f.Key.Compare(g.Key) })
	family := inet.Of(frontends[0].Addr)
	var chains []xtables.Chain
	var keys []balancer.Key
	sets := 0
	for _, f := range frontends {
		slots := map[netip.AddrPort]int{}
		for _, w := range targetsOf(f) {
			slots[w.addr] = len(slots)
		}
		if f.AffinityTimeout > 0 {
			sets = max(sets, len(slots))
		}
		made := render(f, slots, mark)
		chains = append(append(chains, made.below...), made.front)
		keys = append(keys, f.Key)
	}
	newTree(family == inet.IPv4).build(keys).root.each(func(n *treeNode) { chains = append(chains, n.chain()) })
	if sets > 0 {
		b.WriteString("# ipset restore\n")
		for i := range sets {
			b.WriteString("create " + stickySet(i, family) + " " + string(ipset.HashIPPortIP) + " family " + family.Word() + " maxelem " + strconv.Itoa(ipset.MaxEntries) + " timeout 0\n")
		}
	}
	var jumps []string
	for _, hook := range hooks() {
		jumps = append(jumps, "-I "+hook+" 1 -j "+rootChain)
	}
	b.WriteString("# " + family.Program() + "-restore --noflush\n" + xtables.Input("nat", chains, jumps...))
}
