package iptables

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/dataplane/internal/xtables"
)

// way is a backend among those that get new connections: how a packet takes it.
type way struct {
	addr   netip.AddrPort
	weight int
	// action is the rest of a rule once its match has fallen: "-p tcp -j DNAT --to-destination ..." cut in two, because
	// the match comes in between.
	proto, action string
}

// The shape of the chains in which a backend is chosen. A statistic match costs some 60 ns in the legacy backend and 100
// in nft, so that a list of a thousand would cost more than all the rest of a connection's first packet; but each chain
// more costs memory and time to load.
const (
	// mostInList is how many backends stand in one list.
	mostInList = 10
	// inLeaf is how many share a chain on the average, where there are more.
	inLeaf = 6
	// leastFan is how many chains one chain leads to. It grows where deepest would be passed.
	leastFan = 4
	// hashFan and hashLevels are the shape of the chains in which the client's address decides.
	hashFan, hashLevels = 8, 3
	// deepest is the most levels below the frontend's chain: nft allows 15 chains below a hook.
	deepest = 4
)

// chainWriter writes the chains that choose among ways.
type chainWriter struct {
	coin coin
	// prefix begins the names of chains below the frontend's.
	prefix string
	out    []xtables.Chain
}

// choose returns the rules of the frontend's chain, and the chains that they lead to, those first that others lead to. By is the coin.
func choose(by coin, f *balancer.Frontend, ways []way) (rules []string, below []xtables.Chain) {
	c := &chainWriter{coin: by, prefix: groupPrefix + keyHash(f.Key) + "-"}
	switch {
	case len(ways) == 0:
	case f.Scheduler == balancer.DestinationHash:
		rules = []string{ways[byVIP(f, ways)].rule("")}
	case f.Scheduler == balancer.RoundRobin:
		for i := range ways {
			ways[i].weight = 1
		}
		fan, _ := fanFor(len(ways), mostInList)
		rules = c.turns("", ways, fan)
	case isSourceHash(f):
		// Always of the same shape, so that clients do not move because there are more or fewer backends.
		rules = c.branch(f, "", ways, hashFan, hashLevels)
	case len(ways) <= mostInList:
		rules = c.list(f, ways)
	default:
		rules = c.spread(f, ways)
	}
	return rules, c.out
}

// rule is a rule that takes the way where match falls.
func (w *way) rule(match string) string { return w.proto + match + w.action }

// byVIP returns the way of all clients of one VIP.
func byVIP(f *balancer.Frontend, ways []way) int {
	backends := make([]balancer.Backend, len(ways))
	for i, w := range ways {
		backends[i] = balancer.Backend{Addr: w.addr, State: balancer.Active, Weight: w.weight}
	}
	p := pick.New(f.Scheduler, backends, nil)
	return p.Pick(pick.Flow{VIP: f.AddrPort()}, nil)
}

// list has one rule a way, the last of which takes what is left. By chance the heaviest come first, so that fewer rules
// are looked at; by source the order must not change with weights.
func (c *chainWriter) list(f *balancer.Frontend, ways []way) []string {
	if !isSourceHash(f) {
		slices.SortStableFunc(ways, func(a, b way) int { return cmp.Compare(b.weight, a.weight) })
	}
	rest := total(ways)
	rules := make([]string, len(ways))
	for i := range ways {
		match := ""
		if i < len(ways)-1 {
			match = c.coin(identity(ways, i), ways[i].weight, rest)
		}
		rules[i] = ways[i].rule(match)
		rest -= ways[i].weight
	}
	return rules
}

func isSourceHash(f *balancer.Frontend) bool {
	return f.Scheduler == balancer.SourceHash || f.Scheduler == balancer.Maglev
}

// identity is what stays the same of a way: its address, so that a client meets the same host on several ports of a
// service; and its port where the host is in the list already.
func identity(ways []way, i int) string {
	if a := ways[i].addr; i > 0 && ways[i-1].addr.Addr() == a.Addr() {
		return a.String()
	}
	return ways[i].addr.Addr().String()
}

// spread has chains of chains. Which of them a way is in depends on its address alone, so that a change of one way
// rewrites its own chain and those that lead to it.
func (c *chainWriter) spread(f *balancer.Frontend, ways []way) []string {
	fan, levels := fanFor(len(ways), inLeaf)
	return c.branch(f, "", ways, fan, levels)
}

// fanFor returns how many chains each chain leads to, and how many levels of them there are, for n ways of which leaf
// share one.
func fanFor(n, leaf int) (fan, levels int) {
	for fan = leastFan; ; fan *= 2 {
		levels = 0
		for leaves := 1; leaves*leaf < n; leaves *= fan {
			levels++
		}
		if levels <= deepest {
			return fan, levels
		}
	}
}

// branch returns the rules of the chain at path.
func (c *chainWriter) branch(f *balancer.Frontend, path string, ways []way, fan, levels int) []string {
	if levels == 0 || len(ways) <= 1 {
		return c.list(f, ways)
	}
	parts := make([][]way, fan)
	for _, w := range ways {
		i := digit(w.addr, len(path), fan)
		parts[i] = append(parts[i], w)
	}
	rest := total(ways)
	var rules []string
	for i, part := range parts {
		share := total(part)
		if share == 0 {
			continue
		}
		match, sub := "", path+strconv.FormatInt(int64(i), 36)
		if share < rest {
			match = c.coin(sub, share, rest)
		}
		rest -= share
		if len(part) == 1 {
			rules = append(rules, part[0].rule(match))
			continue
		}
		c.out = append(c.out, xtables.Chain{Name: c.prefix + sub, Rules: c.branch(f, sub, part, fan, levels-1)})
		rules = append(rules, match+"-g "+c.prefix+sub)
	}
	return rules
}

// digit is which part a backend belongs to at one level, of up to 36.
func digit(a netip.AddrPort, level, fan int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.String())) // a hash never fails
	sum := h.Sum64()
	sum ^= sum >> 32
	sum *= 0x9e3779b97f4a7c15 // 2^64 by the golden ratio: spreads what differs in few bits
	return int(sum>>(6*level)&63) * fan / 64
}

// turns has every way taken exactly once in len(ways) connections: what is left over after dividing by the fan stands
// in the chain itself, and the rest goes to equally large chains in turn.
func (c *chainWriter) turns(path string, ways []way, fan int) []string {
	n := len(ways)
	if n <= mostInList {
		return c.inOrder(ways, n)
	}
	alone := n % fan
	rules := c.inOrder(ways[:alone], n)
	ways = ways[alone:]
	for i := range fan {
		match, sub := "", path+strconv.FormatInt(int64(i), 36)
		if i < fan-1 {
			match = c.coin(sub, 1, fan-i)
		}
		part := ways[i*len(ways)/fan : (i+1)*len(ways)/fan]
		c.out = append(c.out, xtables.Chain{Name: c.prefix + sub, Rules: c.turns(sub, part, fan)})
		rules = append(rules, match+"-g "+c.prefix+sub)
	}
	return rules
}

// inOrder has each of ways taken once in n connections, and by the last one all that are left where ways are n.
func (c *chainWriter) inOrder(ways []way, n int) []string {
	rules := make([]string, len(ways))
	for i := range ways {
		match := ""
		if n-i > 1 {
			match = c.coin("", 1, n-i)
		}
		rules[i] = ways[i].rule(match)
	}
	return rules
}

func total(ways []way) int {
	sum := 0
	for _, w := range ways {
		sum += w.weight
	}
	return sum
}
