package iptables

import (
	"hash/maphash"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// table is the only table that this dataplane writes.
const table = "nat"

// familyRules is the known state of a family's rules in the kernel.
type familyRules struct {
	name inet.Family
	tool *xtables.Tool
	sets *ipset.Conn
	log  *slog.Logger
	seed maphash.Seed
	// mark is Options.Mark.
	mark string

	mu sync.Mutex // guards the fields below, which counting reads in other goroutines
	// fronts holds the frontends in the kernel.
	fronts map[balancer.Key]*front
	tree   tree
	// chains holds vipd's chains in the kernel.
	chains map[string]chainState
	// unsure reports whether the kernel's tree may differ from tree.
	unsure bool
	// jumps is the number of jumps to the root chain in the kernel's base chains. Zero means that a
	// hook does not have exactly one jump.
	jumps int
	// strayChains lists the chains that jump to the root chain but are not hooks.
	strayChains []string
	// hashes holds the kernel's hashes of vipd's chains, and of the jumps in the kernel's own
	// chains. They are from when the chains were written or last found correct.
	hashes map[string]knownHash
	// broken holds the kernel's hashes of chains whose content is wrong.
	broken map[string]xtables.ChainHash
	// exact reports whether the iptables programs print rules as they were written.
	exact bool
	// formerChecked reports whether the other variants have been searched for an earlier process's
	// rules.
	formerChecked bool
	// former lists the other variants in which an earlier process's rules still serve clients.
	// formerly holds the frontends that need these rules.
	former   []*xtables.Tool
	formerly map[balancer.Key]bool
	// epoch counts the writes.
	epoch uint64
	// slots is the number of existing sticky sets.
	slots int
	look  xtables.Watch
	counterState
}

// knownHash holds two hashes of a chain: the hash of the kernel's rules, and chainState.text, where
// 0 means unknown.
type knownHash struct {
	hash xtables.ChainHash
	text uint64
}

// chainState is the known state of a chain in the kernel.
type chainState struct {
	// text is a hash of the rules; 0 means unknown.
	text  uint64
	rules int
	// epoch is the epoch in which the chain was written.
	epoch uint64
	// targets holds the backend to which each rule leads, or the zero value. Only frontends'
	// chains, and the chains below them, lead to backends.
	targets []netip.AddrPort
	// to lists the chains to which the rules jump.
	to []string
}

// front is a frontend in the kernel.
type front struct {
	digest dataplane.Digest
	// service and port identify the frontend's counters.
	service balancer.Name
	port    string
	// first is the first of a range's endpoint ports, or 0 for a single port.
	first uint16
	chain string
	below []string
	// proved reports whether this process wrote the frontend's chains, or compared them with the
	// desired chains.
	proved bool
	// slots holds the slots of backends in sticky sets, and used is the number of slots ever
	// assigned.
	slots map[netip.AddrPort]int
	used  int
}

func newFamily(name inet.Family, tool *xtables.Tool, sets *ipset.Conn, mark string, log *slog.Logger) *familyRules {
	y := &familyRules{name: name, tool: tool, sets: sets, mark: mark, log: log, seed: maphash.MakeSeed()}
	y.counterState = counterState{counters.NewReadings(), map[string][]uint64{}}
	y.broken = map[string]xtables.ChainHash{}
	y.forget()
	return y
}

// forget resets the state as if the kernel had none of vipd's objects.
func (y *familyRules) forget() {
	y.fronts = map[balancer.Key]*front{}
	y.chains = map[string]chainState{}
	y.tree = newTree(y.is4())
	y.unsure = true
	y.jumps = 0
	y.hashes = map[string]knownHash{}
}

func (y *familyRules) is4() bool { return y.name == inet.IPv4 }

func (y *familyRules) state(c xtables.Chain) chainState {
	var h maphash.Hash
	h.SetSeed(y.seed)
	s := chainState{rules: len(c.Rules)}
	for _, rule := range c.Rules {
		_, _ = h.WriteString(canonical(rule)) // a hash never fails
		_ = h.WriteByte('\n')
		if target := targetOf(rule); target != "" {
			s.to = append(s.to, target)
		}
	}
	s.text = h.Sum64() | 1
	if !strings.HasPrefix(c.Name, nodePrefix) && c.Name != rootChain {
		s.targets = make([]netip.AddrPort, len(c.Rules))
		for i, rule := range c.Rules {
			s.targets[i] = backendOf(rule)
		}
	}
	return s
}

// certain is the kernel's 31-bit representation of the probability 1. The iptables programs print
// stored probabilities with rounding errors.
const certain = 1 << 31

// canonical returns a rule in a form that does not depend on the program that printed it.
func canonical(rule string) string {
	const option = "--probability "
	before, rest, ok := strings.Cut(rule, option)
	if !ok {
		return strings.TrimSpace(rule)
	}
	number, after, _ := strings.Cut(rest, " ")
	chance, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return rule
	}
	return before + option + strconv.FormatFloat(math.Round(chance*certain), 'f', 0, 64) + " " + strings.TrimSpace(after)
}

// targetOf returns the name of vipd's chain to which a rule jumps, or "" for other targets.
func targetOf(rule string) string {
	if _, number, jumps := strings.Cut(rule, "-j "+nodePrefix); jumps {
		return nodePrefix + number
	}
	_, target, _ := strings.Cut(rule, "-g ")
	return target
}

// backendOf returns the backend to which a rule translates packets, or the zero value. For a port
// range, the port is 0.
func backendOf(rule string) netip.AddrPort {
	_, text, _ := strings.Cut(rule, "--to-destination ")
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, 0)
	}
	to, _ := netip.ParseAddrPort(text) // the zero value for other rules
	return to
}

// sizes returns the expected size of each chain, for [xtables.Tool.Compare]: its own rules and the
// rules that lead to it.
func (y *familyRules) sizes() map[string]int {
	want := make(map[string]int, len(y.chains))
	for name, c := range y.chains {
		want[name] += c.rules
		for _, to := range c.to {
			want[to]++
		}
	}
	want[rootChain] += y.jumps
	return want
}

// same reports whether the kernel has the chain with exactly these rules.
func (y *familyRules) same(c xtables.Chain) bool {
	have, ok := y.chains[c.Name]
	return ok && have.text == y.state(c).text
}

// assign gives a slot to each of f's backends: its current slot, or the first free slot if it gets
// new connections. fresh lists the slots that may have belonged to other backends.
func (y *familyRules) assign(f *balancer.Frontend) (slots map[netip.AddrPort]int, used int, fresh []int) {
	if f.AffinityTimeout <= 0 {
		return nil, 0, nil
	}
	slots = map[netip.AddrPort]int{}
	taken := map[int]bool{}
	old := y.fronts[f.Key]
	if old == nil || old.slots == nil { // an earlier frontend with this key may have used all slots
		used = y.slots
	}
	if old != nil && old.slots != nil {
		used = old.used
		for _, b := range f.Backends { // draining backends keep their slots, because they may become active again
			if slot, ok := old.slots[b.Addr]; ok {
				slots[b.Addr], taken[slot] = slot, true
			}
		}
	}
	for _, b := range f.Backends {
		if _, ok := slots[b.Addr]; ok || b.State != balancer.Active {
			continue
		}
		slot := 0
		for taken[slot] {
			slot++
		}
		slots[b.Addr], taken[slot] = slot, true
		if slot < used {
			fresh = append(fresh, slot)
		}
		used = max(used, slot+1)
	}
	return slots, used, fresh
}

// keys returns the sorted keys of the frontends in the kernel, except the keys in without.
func (y *familyRules) keys(without map[balancer.Key]bool) []balancer.Key {
	keys := make([]balancer.Key, 0, len(y.fronts))
	for k := range y.fronts {
		if !without[k] {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, balancer.Key.Compare)
	return keys
}
