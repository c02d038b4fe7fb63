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

// form is a frontend's form in the kernel: its chain, and the chains below it. A chain precedes the
// chains that lead to it.
type form struct {
	below []xtables.Chain
	front xtables.Chain
}

// render returns the form of f. slots maps backends to their slots in sticky sets. It is nil if f
// has no affinity.
//
// The frontend's chain starts with the rule mark, unless that is "" or f is withdrawn. Its last
// rule has the note as its comment. While there are backends, no packet reaches that rule.
// Otherwise it accepts the packet, so a port without backends does not use the backends of a range
// that includes the port.
func render(f *balancer.Frontend, slots map[netip.AddrPort]int, mark string) form {
	var made form
	targets := targetsOf(f)
	var rules []string
	if mark != "" && !f.Withdrawn {
		rules = append(rules, mark)
	}
	if f.AffinityTimeout > 0 {
		rules = append(rules, made.addAffinity(f, targets, slots)...)
	}
	if firstTarget(f) != firstOf(f.Key.Port) {
		made.addMoved(f, targets)
	}
	choices, below := choose(coinOf(f), f, targets)
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

// targetsOf returns the backends that get new connections.
func targetsOf(f *balancer.Frontend) []target {
	var targets []target
	for _, b := range f.Backends {
		if b.State == balancer.Active {
			to := b.Addr.String()
			if f.Key.Port.IsRange() {
				to = b.Addr.Addr().String() // the destination keeps its port
			}
			targets = append(targets, target{b.Addr, b.Weight, "-p " + string(f.Proto) + " ", "-j DNAT --to-destination " + to})
		}
	}
	return targets
}

// maxTimeout is the maximum timeout of a set entry (IPSET_MAX_TIMEOUT: the milliseconds must fit in
// half an unsigned int).
const maxTimeout = math.MaxUint32 / 2 / 1000 * time.Second

// addAffinity gives every target a chain that records the client before it selects the target. It
// returns the rules that return recorded clients to their target. Earlier rules remove clients from
// the sets of backends that get no new connections, so a client stays on its new backend even when
// the old backend becomes active again.
func (m *form) addAffinity(f *balancer.Frontend, targets []target, slots map[netip.AddrPort]int) (rules []string) {
	timeout := int((min(f.AffinityTimeout, maxTimeout) + time.Second - 1) / time.Second)
	for _, b := range f.Backends {
		if slot, ok := slots[b.Addr]; ok && b.State != balancer.Active && len(targets) > 0 {
			rules = append(rules, fmt.Sprintf("-j SET --del-set %s dst,dst,src", stickySet(slot, inet.Of(f.Addr))))
		}
	}
	for i := range targets {
		w := &targets[i]
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

func stickyChain(k balancer.Key, slot int) string {
	return stickyPrefix + keyHash(k) + "-" + strconv.Itoa(slot)
}

// stickySet returns the name of the set that holds a slot's clients. An entry consists of VIP, port
// and client.
func stickySet(slot int, family inet.Family) string {
	return "vipd-sticky" + family.Digit() + "-" + strconv.Itoa(slot)
}

// digest implements [Dataplane.Digest]. It covers everything that render and the drains derive from
// f.
func digest(f *balancer.Frontend, mark string) dataplane.Digest {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, renderVersion, mark) // a hash never fails
	return max(1, dnat.Digest(f)^dataplane.Digest(h.Sum64()))
}

// renderVersion changes with the form of frontends, so a new version rewrites the rules of an older
// one.
const renderVersion = 2
