package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
)

// findTree follows the tree that was read from the root on. Where it leads to every frontend, and to nothing else, it is
// the family's; otherwise the family is unsure, and the answer says what is wrong with it.
func (s *survey) findTree() string {
	y := s.y
	for chain := range s.rules {
		if isNode(chain) {
			n := &node{name: chain}
			y.tree.next = max(y.tree.next, n.number())
		}
	}
	rules, ok := s.rules[rootChain]
	last := keeper(y.is4())
	switch {
	case (!ok || len(rules) == 0) && len(y.fronts) == 0:
		return ""
	case !ok:
		return "chain " + rootChain + " is missing"
	case len(rules) == 0 || rules[len(rules)-1] != last:
		return "the last rule of " + rootChain + " is missing"
	}
	t := treeReader{survey: s, nodes: map[string]bool{}, reached: map[balancer.Key]bool{}}
	root, err := t.node(rootChain, y.tree.root.at, rules[:len(rules)-1])
	switch {
	case err != nil:
		return err.Error()
	case len(t.reached) != len(y.fronts):
		return fmt.Sprintf("the rules below %s lead to %d of %d frontends", rootChain, len(t.reached), len(y.fronts))
	case root.depth() > deepestTree:
		return fmt.Sprintf("the chains below %s are %d deep", rootChain, root.depth())
	}
	changed := ""
	root.each(func(n *node) {
		if !y.alike(y.chains[n.name], y.state(n.chain())) {
			changed = "rules of chain " + n.name + " were changed"
		}
	})
	if changed == "" {
		y.tree.root, y.unsure = root, false
	}
	return changed
}

// treeReader makes nodes of rules.
type treeReader struct {
	*survey
	nodes   map[string]bool
	reached map[balancer.Key]bool
}

func (t *treeReader) node(name string, at path, rules []string) (*node, error) {
	n := &node{name: name, at: at}
	for _, rule := range rules {
		to, target, ok := readBranch(rule, at)
		b := branch{at: to}
		switch below, exists := t.rules[target]; {
		case !ok || !exists:
			return nil, fmt.Errorf("a rule of %s is not ours: %s", name, rule)
		case isNode(target) && !t.nodes[target]:
			t.nodes[target] = true
			var err error
			if b.node, err = t.node(target, to, below); err != nil {
				return nil, err
			}
		case isFront(target) && to.whole() && frontChain(to.key()) == target && t.y.fronts[to.key()] != nil:
			t.reached[to.key()] = true
		default:
			return nil, fmt.Errorf("a rule of %s leads astray: %s", name, rule)
		}
		n.ways = append(n.ways, b)
	}
	slices.SortFunc(n.ways, func(a, b branch) int { return a.at.compare(b.at) })
	return n, nil
}

// readBranch reads what match and chain wrote.
func readBranch(rule string, within path) (at path, target string, ok bool) {
	at = within
	words := strings.Fields(rule)
	for ; len(words) >= 2; words = words[2:] {
		value := words[1]
		switch words[0] {
		case "-d":
			p, err := netip.ParsePrefix(value)
			if err != nil || p.Addr().BitLen() != at.addr {
				return path{}, "", false
			}
			whole := pathOf(balancer.Key{Addr: p.Addr(), Proto: balancer.TCP})
			at = whole.prefix(p.Bits())
		case "-p":
			i := slices.Index(protocols(), balancer.Protocol(value))
			if i < 0 || at.len < at.addr {
				return path{}, "", false
			}
			at.bits[at.addr/8] = byte(i)
			at.len = max(at.len, at.addr+protoBits)
		case "-m":
			if value != "tcp" && value != "udp" && value != "sctp" {
				return path{}, "", false
			}
		case "--dport":
			if at, ok = at.withPorts(value); !ok {
				return path{}, "", false
			}
		case "-g":
			target = value
		default:
			return path{}, "", false
		}
	}
	return at, target, len(words) == 0 && target != "" && within.covers(at) && at.len > within.len
}

// withPorts is p with the ports of a rule, such as 80 or 64:127.
func (p path) withPorts(text string) (path, bool) {
	lowText, highText, ranged := strings.Cut(text, ":")
	if !ranged {
		highText = lowText
	}
	low, lowErr := strconv.ParseUint(lowText, 10, 16)
	high, highErr := strconv.ParseUint(highText, 10, 16)
	if lowErr != nil || highErr != nil || p.len < p.addr+protoBits || low > high {
		return path{}, false
	}
	n := p.addr / 8
	p.bits[n+1], p.bits[n+2] = byte(low>>8), byte(low)
	p.len = p.addr + protoBits + portBits
	for size := high - low + 1; size > 1; size /= 2 {
		if size%2 != 0 {
			return path{}, false
		}
		p.len--
	}
	return p, p.prefix(p.len) == p
}
