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

// table is the only one that this dataplane writes to.
const table = "nat"

// family is what is known of the kernel's rules of one family.
type family struct {
	name inet.Family
	tool *xtables.Tool
	sets *ipset.Conn
	log  *slog.Logger
	seed maphash.Seed
	// mark is Options.Mark.
	mark string

	mu sync.Mutex // guards what follows: counting reads it from other goroutines
	// fronts are the frontends that are there.
	fronts map[balancer.Key]*front
	tree   tree
	// chains are those of ours in the kernel.
	chains map[string]chainState
	// unsure: the tree in the kernel is not known to be as tree says.
	unsure bool
	// jumps is how many rules of the kernel's chains lead to the root; 0 means not each of them has just one.
	jumps int
	// astray are other chains that lead to the root.
	astray []string
	// prints say what the kernel had in each of chains, and of jumps in its own, when they were written or found right.
	prints map[string]printed
	// broken is what the kernel had of chains where that is not what they should be.
	broken map[string]xtables.Print
	// exact: the programs here print rules in the words in which they are written.
	exact bool
	// looked: other backends were looked into.
	looked bool
	// former are the variants in which an earlier process's rules serve until none is needed, and formerly the frontends that are.
	former   []*xtables.Tool
	formerly map[balancer.Key]bool
	// epoch counts the writes.
	epoch uint64
	// slots is how many sticky sets exist.
	slots int
	look  xtables.Watch
	counted
}

// printed is a chain's print with the hash of the text that it is of, as in chainState; 0 means unknown.
type printed struct {
	print xtables.Print
	text  uint64
}

// chainState is what is known of a chain in the kernel.
type chainState struct {
	// text is a hash of the rules; 0 means unknown.
	text  uint64
	rules int
	// epoch is when it was written.
	epoch uint64
	// targets are the backends that the rules lead to, in their order; the zero value for other rules. Only frontends'
	// chains and those below them have any.
	targets []netip.AddrPort
	// to are the chains that the rules lead to.
	to []string
}

// front is one frontend in the kernel.
type front struct {
	digest dataplane.Digest
	// service and port are what counters are named by.
	service balancer.Name
	port    string
	chain   string
	below   []string
	// proved: its chains were written by us, or compared with what they should be.
	proved bool
	// slots says which sticky set is whose, and used is how many slots were ever given away.
	slots map[netip.AddrPort]int
	used  int
}

func newFamily(name inet.Family, tool *xtables.Tool, sets *ipset.Conn, mark string, log *slog.Logger) *family {
	y := &family{name: name, tool: tool, sets: sets, mark: mark, log: log, seed: maphash.MakeSeed()}
	y.counted = counted{counters.NewReadings(), map[string][]uint64{}}
	y.broken = map[string]xtables.Print{}
	y.forget()
	return y
}

// forget is the state in which nothing of ours is in the kernel.
func (y *family) forget() {
	y.fronts = map[balancer.Key]*front{}
	y.chains = map[string]chainState{}
	y.tree = newTree(y.is4())
	y.unsure, y.jumps, y.prints = true, 0, map[string]printed{}
}

func (y *family) is4() bool { return y.name == inet.IPv4 }

// state is what the chain is known by once the kernel has it.
func (y *family) state(c xtables.Chain) chainState {
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

// certain is the probability 1 as the kernel keeps it, in 31 bits: programs print what those make of a number.
const certain = 1 << 31

// canonical is a rule in words that do not depend on who wrote it.
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

// targetOf returns the chain of ours that a rule leads to.
func targetOf(rule string) string {
	_, target, _ := strings.Cut(rule, "-g ")
	return target
}

// backendOf returns the backend that a rule leads to.
func backendOf(rule string) netip.AddrPort {
	_, text, _ := strings.Cut(rule, "--to-destination ")
	to, _ := netip.ParseAddrPort(text) // the zero value for rules that lead to none
	return to
}

// sizes is what Compare expects of the table.
func (y *family) sizes() map[string]int {
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

// same reports whether the kernel has the chain as it is.
func (y *family) same(c xtables.Chain) bool {
	have, ok := y.chains[c.Name]
	return ok && have.text == y.state(c).text
}

// assign gives every backend of f that gets connections a slot: the one that it has, or the first that is free. fresh
// are the slots that were others' before.
func (y *family) assign(f *balancer.Frontend) (slots map[netip.AddrPort]int, used int, fresh []int) {
	if f.AffinityTimeout <= 0 {
		return nil, 0, nil
	}
	slots = map[netip.AddrPort]int{}
	taken := map[int]bool{}
	old := y.fronts[f.Key]
	if old == nil || old.slots == nil { // an earlier frontend on the key may have had all of them
		used = y.slots
	}
	if old != nil && old.slots != nil {
		used = old.used
		for _, b := range f.Backends { // those that only drain keep theirs: they may come back
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

// keys are the frontends that are there, but for those in without.
func (y *family) keys(without map[balancer.Key]bool) []balancer.Key {
	keys := make([]balancer.Key, 0, len(y.fronts))
	for k := range y.fronts {
		if !without[k] {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, balancer.Key.Compare)
	return keys
}
