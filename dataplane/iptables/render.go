package iptables

import (
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"strconv"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/xtables"
)

// form is what a frontend comes to: its chain, and those that it leads to, those first that others lead to.
type form struct {
	below []xtables.Chain
	front xtables.Chain
}

// render makes the form of f. slots says which sticky set is whose; it is nil where f has no affinity.
//
// The frontend's chain begins with the rule mark, unless that is "". It ends in a rule that no packet reaches while there
// are backends: its comment, the note, tells what the chain was made of.
func render(f *balancer.Frontend, slots map[netip.AddrPort]int, mark string) form {
	var made form
	ways := waysOf(f)
	var rules []string
	if mark != "" {
		rules = append(rules, mark)
	}
	if f.AffinityTimeout > 0 {
		rules = append(rules, made.stick(f, ways, slots)...)
	}
	choices, below := choose(coinOf(f), f, ways)
	rules = append(rules, choices...)
	made.below = append(made.below, below...)
	count := 1 + len(rules)
	for _, c := range made.below {
		count += len(c.Rules)
	}
	n := note{key: f.Key, service: f.Service, port: f.Port, digest: digest(f, mark), rules: count}
	rules = append(rules, n.rule())
	made.front = xtables.Chain{Name: frontChain(f.Key), Rules: rules}
	return made
}

// waysOf lists the backends that get new connections.
func waysOf(f *balancer.Frontend) []way {
	var ways []way
	for _, b := range f.Backends {
		if b.State == balancer.Active {
			ways = append(ways, way{b.Addr, b.Weight, "-p " + string(f.Proto) + " ", "-j DNAT --to-destination " + b.Addr.String()})
		}
	}
	return ways
}

// longestTimeout is the longest time that an entry of a set can have (IPSET_MAX_TIMEOUT: what fits in milliseconds of
// half an unsigned int).
const longestTimeout = math.MaxUint32 / 2 / 1000 * time.Second

// stick gives every way a chain that notes the client before it takes the way, and returns the rules by which clients
// that were noted come back. Before these, a client that comes while its backend gets no new connections is struck from
// that backend's set: it stays where it goes now, also when the backend returns.
func (m *form) stick(f *balancer.Frontend, ways []way, slots map[netip.AddrPort]int) (rules []string) {
	timeout := int((min(f.AffinityTimeout, longestTimeout) + time.Second - 1) / time.Second)
	for _, b := range f.Backends {
		if slot, ok := slots[b.Addr]; ok && b.State != balancer.Active && len(ways) > 0 {
			rules = append(rules, fmt.Sprintf("-j SET --del-set %s dst,dst,src", stickySet(slot, inet.Of(f.Addr))))
		}
	}
	for i := range ways {
		w := &ways[i]
		slot := slots[w.addr]
		chain := stickyChain(f.Key, slot)
		set := stickySet(slot, inet.Of(f.Addr))
		m.below = append(m.below, xtables.Chain{Name: chain, Rules: []string{
			fmt.Sprintf("-j SET --add-set %s dst,dst,src --exist --timeout %d", set, timeout),
			w.rule(""),
		}})
		rules = append(rules, fmt.Sprintf("-m set --match-set %s dst,dst,src -g %s", set, chain))
		w.proto, w.action = "", "-g "+chain
	}
	return rules
}

// stickyChain is the chain of one backend of a frontend with affinity.
func stickyChain(k balancer.Key, slot int) string {
	return stickyPrefix + keyHash(k) + "-" + strconv.Itoa(slot)
}

// stickySet is the set of the clients of one slot: entries are VIP, port and client.
func stickySet(slot int, family inet.Family) string {
	return "vipd-sticky" + family.Digit() + "-" + strconv.Itoa(slot)
}

// digest is Dataplane.Digest: it covers what render and the drains make of f.
func digest(f *balancer.Frontend, mark string) dataplane.Digest {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, renderVersion, mark) // a hash never fails
	return max(1, dnat.Digest(f)^dataplane.Digest(h.Sum64()))
}

// renderVersion changes with the form that frontends are given, so that a new version rewrites what an older one left.
const renderVersion = 1
