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

// target is a backend that gets new connections.
type target struct {
	addr   netip.AddrPort
	weight int
	// proto and action are the parts of its rule before and after the match: "-p tcp " and "-j DNAT
	// --to-destination ...".
	proto, action string
}

// These constants shape the chains that choose a backend. A statistic match costs about 60 ns in
// the legacy backend and 100 ns in nft, so a list of a thousand would cost more than everything
// else that the kernel does for a connection's first packet. But each additional chain needs memory
// and time to load.
const (
	// maxInList is the maximum number of backends in a single list.
	maxInList = 10
	// inLeaf is the average number of backends in a chain, if a single list is too short for all
	// backends.
	inLeaf = 6
	// minFan is the minimum number of chains to which a chain leads. The number grows if there
	// would be more than maxLevels levels.
	minFan = 4
	// hashFan and hashLevels are the shape of the chains that use the client's address.
	hashFan, hashLevels = 8, 3
	// maxLevels is the maximum number of levels below the frontend's chain. nft allows 15 chains
	// below a hook.
	maxLevels = 4
)

// chainWriter writes the chains that choose a target.
type chainWriter struct {
	coin coin
	// prefix is the name prefix of the chains below the frontend's chain.
	prefix string
	out    []xtables.Chain
}

// choose returns the rules of the frontend's chain, and the chains below it. A chain precedes the
// chains that lead to it.
func choose(by coin, f *balancer.Frontend, targets []target) (rules []string, below []xtables.Chain) {
	c := &chainWriter{coin: by, prefix: groupPrefix + keyHash(f.Key) + "-"}
	switch {
	case len(targets) == 0:
	case f.Scheduler == balancer.DestinationHash:
		rules = []string{targets[byVIP(f, targets)].rule("")}
	case f.Scheduler == balancer.RoundRobin:
		for i := range targets {
			targets[i].weight = 1
		}
		fan, _ := fanFor(len(targets), maxInList)
		rules = c.turns("", targets, fan)
	case isSourceHash(f):
		// This shape never changes, so clients do not move when the number of backends changes.
		rules = c.branch(f, "", targets, hashFan, hashLevels)
	case len(targets) <= maxInList:
		rules = c.list(f, targets)
	default:
		rules = c.spreadByAddress(f, targets)
	}
	return rules, c.out
}

// rule returns the rule that selects the target if match matches.
func (w *target) rule(match string) string { return w.proto + match + w.action }

// byVIP returns the index of the target that gets all clients of a VIP.
func byVIP(f *balancer.Frontend, targets []target) int {
	backends := make([]balancer.Backend, len(targets))
	for i, w := range targets {
		backends[i] = balancer.Backend{Addr: w.addr, State: balancer.Active, Weight: w.weight}
	}
	p := pick.New(f.Scheduler, backends, nil)
	return p.Pick(pick.Flow{VIP: f.AddrPort()}, nil)
}

// list returns a rule for each target. The last rule gets all remaining packets. For random choice
// the targets with the most weight are first, so packets pass fewer rules. With a source hash the
// order must not depend on weights.
func (c *chainWriter) list(f *balancer.Frontend, targets []target) []string {
	if !isSourceHash(f) {
		slices.SortStableFunc(targets, func(a, b target) int { return cmp.Compare(b.weight, a.weight) })
	}
	rest := total(targets)
	rules := make([]string, len(targets))
	for i := range targets {
		match := ""
		if i < len(targets)-1 {
			match = c.coin(identity(targets, i), targets[i].weight, rest)
		}
		rules[i] = targets[i].rule(match)
		rest -= targets[i].weight
	}
	return rules
}

func isSourceHash(f *balancer.Frontend) bool {
	return f.Scheduler == balancer.SourceHash || f.Scheduler == balancer.Maglev
}

// identity returns the name by which a target is hashed: the target's address without the port, so
// a client gets the same host on several ports of a service. If the previous target is on the same
// host, the name includes the port.
func identity(targets []target, i int) string {
	if a := targets[i].addr; i > 0 && targets[i-1].addr.Addr() == a.Addr() {
		return a.String()
	}
	return targets[i].addr.Addr().String()
}

// spreadByAddress distributes targets to a tree of chains. A target's chain depends only on its
// address, so a change to one target only rewrites its chain and the chains that lead to it.
func (c *chainWriter) spreadByAddress(f *balancer.Frontend, targets []target) []string {
	fan, levels := fanFor(len(targets), inLeaf)
	return c.branch(f, "", targets, fan, levels)
}

// fanFor returns the number of chains to which each chain leads, and the number of levels. n is the
// number of targets, and leaf is the average number of targets in a chain at the last level.
func fanFor(n, leaf int) (fan, levels int) {
	for fan = minFan; ; fan *= 2 {
		levels = 0
		for leaves := 1; leaves*leaf < n; leaves *= fan {
			levels++
		}
		if levels <= maxLevels {
			return fan, levels
		}
	}
}

// branch returns the rules of the chain at path, and adds the chains below it to out.
func (c *chainWriter) branch(f *balancer.Frontend, path string, targets []target, fan, levels int) []string {
	if levels == 0 || len(targets) <= 1 {
		return c.list(f, targets)
	}
	parts := make([][]target, fan)
	for _, w := range targets {
		i := digit(w.addr, len(path), fan)
		parts[i] = append(parts[i], w)
	}
	rest := total(targets)
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

// digit returns the number of the chain that contains a backend at a level. The number is less than
// fan, and becomes one base-36 digit of the chain's name.
func digit(a netip.AddrPort, level, fan int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.String())) // a hash never fails
	sum := h.Sum64()
	sum ^= sum >> 32
	sum *= 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio: separates values that differ in few bits
	return int(sum>>(6*level)&63) * fan / 64
}

// turns returns rules that give each target exactly one of len(targets) consecutive connections. If
// the number of targets is not a multiple of fan, the chain itself has rules for the remainder. All
// other targets are in equally large chains, which are selected in turn.
func (c *chainWriter) turns(path string, targets []target, fan int) []string {
	n := len(targets)
	if n <= maxInList {
		return c.inOrder(targets, n)
	}
	alone := n % fan
	rules := c.inOrder(targets[:alone], n)
	targets = targets[alone:]
	for i := range fan {
		match, sub := "", path+strconv.FormatInt(int64(i), 36)
		if i < fan-1 {
			match = c.coin(sub, 1, fan-i)
		}
		part := targets[i*len(targets)/fan : (i+1)*len(targets)/fan]
		c.out = append(c.out, xtables.Chain{Name: c.prefix + sub, Rules: c.turns(sub, part, fan)})
		rules = append(rules, match+"-g "+c.prefix+sub)
	}
	return rules
}

// inOrder returns rules that send one of n consecutive connections to each target. If there are n
// targets, the last rule matches all remaining connections.
func (c *chainWriter) inOrder(targets []target, n int) []string {
	rules := make([]string, len(targets))
	for i := range targets {
		match := ""
		if n-i > 1 {
			match = c.coin("", 1, n-i)
		}
		rules[i] = targets[i].rule(match)
	}
	return rules
}

func total(targets []target) int {
	sum := 0
	for _, w := range targets {
		sum += w.weight
	}
	return sum
}
