package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
	testwait "vipd/test/wait"
)

// kernel is a strict stand-in for ipsets and rules of one family: it refuses what the kernel refuses, and fails when
// told to.
type kernel struct {
	t     *testing.T
	sets  map[string]map[ipset.Entry]bool
	kinds map[string]ipset.Kind
	// chains holds rules by table and chain, such as "filter VIPD-GUARD".
	chains map[string][]string
	// left is what wrote has seen, by table and chain.
	left map[string]map[string][]string
	// fail returns an error for some operations; nil means none fails.
	fail func() error
	ops  int
	// refuse is what no rule or chain may contain; lacks is a kind of set that there is not; "" means all is fine.
	refuse string
	lacks  ipset.Kind
}

func newKernel(t *testing.T) *kernel {
	return &kernel{
		t: t, sets: map[string]map[ipset.Entry]bool{}, kinds: map[string]ipset.Kind{}, left: map[string]map[string][]string{},
		chains: map[string][]string{
			"filter INPUT": nil, "filter FORWARD": nil, "filter OUTPUT": nil, "mangle PREROUTING": nil, "mangle OUTPUT": nil,
			"nat POSTROUTING": nil, "raw PREROUTING": nil, "raw OUTPUT": nil,
		},
	}
}

func (k *kernel) op() error {
	k.ops++
	if k.fail == nil {
		return nil
	}
	return k.fail()
}

// users counts the rules that contain text.
func (k *kernel) users(text string) (n int) {
	for _, rules := range k.chains {
		for _, r := range rules {
			n += strings.Count(r+" ", text)
		}
	}
	return n
}

func (k *kernel) Create(set string, kind ipset.Kind, _ inet.Family) error {
	if err := k.op(); err != nil {
		return err
	}
	if kind == k.lacks {
		return ipset.ErrUnsupported
	}
	if old, ok := k.kinds[set]; ok && old != kind {
		return ipset.ErrDifferent
	}
	if k.sets[set] == nil {
		k.sets[set], k.kinds[set] = map[ipset.Entry]bool{}, kind
	}
	return nil
}

func (k *kernel) CreatePassing(set string, kind ipset.Kind, family inet.Family, _ ipset.Passing) error {
	return k.Create(set, kind, family)
}

func (k *kernel) Destroy(set string) error {
	if err := k.op(); err != nil {
		return err
	}
	if k.users("-set "+set+" ") > 0 {
		return ipset.ErrInUse
	}
	delete(k.sets, set)
	delete(k.kinds, set)
	return nil
}

func (k *kernel) change(set string, entries []ipset.Entry, present bool) error {
	if err := k.op(); err != nil {
		return err
	}
	if k.sets[set] == nil {
		return ipset.ErrNotFound
	}
	for _, e := range entries {
		if e.Net.IsValid() && e.Net.Bits() == 0 {
			k.t.Fatalf("entry %v of %s: /0 can't be held", e, set)
		}
		if k.sets[set][e] == present {
			k.t.Fatalf("entry %v of %s is so already", e, set)
		}
		if present {
			k.sets[set][e] = true
		} else {
			delete(k.sets[set], e)
		}
	}
	return nil
}

func (k *kernel) Add(set string, entries []ipset.Entry) error { return k.change(set, entries, true) }
func (k *kernel) Delete(set string, entries []ipset.Entry) error {
	return k.change(set, entries, false)
}

func (k *kernel) List(set string) ([]ipset.Entry, error) {
	if err := k.op(); err != nil {
		return nil, err
	}
	if k.sets[set] == nil {
		return nil, ipset.ErrNotFound
	}
	return slices.Collect(maps.Keys(k.sets[set])), nil
}

func (k *kernel) Header(set string) (ipset.Header, error) {
	if err := k.op(); err != nil {
		return ipset.Header{}, err
	}
	if k.sets[set] == nil {
		return ipset.Header{}, ipset.ErrNotFound
	}
	return ipset.Header{Kind: k.kinds[set], Elements: len(k.sets[set])}, nil
}

// Restore carries out each block as a transaction: all of it or nothing.
func (k *kernel) Restore(_ context.Context, input string) error {
	if err := k.op(); err != nil {
		return err
	}
	if k.refuse != "" && strings.Contains(input, k.refuse) {
		return &xtables.OpError{Op: "iptables-restore", Text: "no " + k.refuse + " here", Err: errors.New("exit status 2")}
	}
	table := ""
	var chains map[string][]string
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		words := strings.SplitN(line, " ", 3)
		chain := table + " "
		if len(words) > 1 {
			chain += words[1]
		}
		switch {
		case line[0] == '*':
			table, chains = line[1:], map[string][]string{}
			for c, rules := range k.chains {
				chains[c] = slices.Clone(rules)
			}
		case line[0] == ':':
			chains[table+" "+words[0][1:]] = nil
		case words[0] == "-A":
			chains[chain] = append(chains[chain], words[2])
		case words[0] == "-I":
			chains[chain] = slices.Insert(chains[chain], 0, strings.TrimPrefix(words[2], "1 "))
		case words[0] == "-D":
			i := slices.Index(chains[chain], words[2])
			if i < 0 {
				return fmt.Errorf("%q: there is no such rule", line)
			}
			chains[chain] = slices.Delete(chains[chain], i, i+1)
		case words[0] == "-X":
			if _, ok := chains[chain]; !ok {
				return fmt.Errorf("%q: there is no such chain", line)
			}
			delete(chains, chain)
		case line == "COMMIT":
			if err := k.check(chains); err != nil {
				return err
			}
			k.chains = chains
		}
	}
	return nil
}

// check refuses rules that lead nowhere, or look at sets that are not there.
func (k *kernel) check(chains map[string][]string) error {
	for in, rules := range chains {
		table, _, _ := strings.Cut(in, " ")
		for _, r := range rules {
			words := strings.Fields(r)
			for i, w := range words {
				if (w == "--match-set" || w == "--add-set") && k.sets[words[i+1]] == nil {
					return fmt.Errorf("the set of %q does not exist", r)
				}
				if w == "-j" || w == "-g" {
					_, ok := chains[table+" "+words[i+1]]
					if !ok && strings.HasPrefix(words[i+1], "VIPD-") {
						return fmt.Errorf("the chain of %q does not exist", r)
					}
				}
			}
		}
	}
	return nil
}

func (k *kernel) Rules(_ context.Context, table, chain string) ([]string, error) {
	return slices.Clone(k.chains[table+" "+chain]), k.op()
}

func (k *kernel) ChainExists(_ context.Context, table, chain string) (bool, error) {
	_, ok := k.chains[table+" "+chain]
	return ok, k.op()
}

// writing implements ruleWatch.
func (*kernel) writing(context.Context, Tool, string) error { return nil }

// wrote implements ruleWatch.
func (k *kernel) wrote(_ context.Context, _ Tool, table string, want, bases map[string]int) error {
	k.left[table] = map[string][]string{}
	for name, rules := range want {
		if n := len(k.chains[table+" "+name]); n != rules {
			return fmt.Errorf("%s of %s has %d rules, want %d", name, table, n, rules)
		}
		k.left[table][name] = k.chains[table+" "+name]
	}
	for name := range bases {
		k.left[table][name] = k.chains[table+" "+name]
	}
	return nil
}

// look implements ruleWatch.
func (k *kernel) look(_ context.Context, _ Tool, table string) (string, error) {
	for name, rules := range k.left[table] {
		if now, ok := k.chains[table+" "+name]; !ok || !slices.Equal(now, rules) {
			return fmt.Sprintf("chain %s: %q instead of %q", name, now, rules), k.op()
		}
	}
	return "", k.op()
}

func guardOver(k *kernel, m dataplane.Needs) *legacy {
	g := &legacy{
		sets: k, watch: k,
		tool:   func(context.Context) (Tool, error) { return k, k.op() },
		others: func(context.Context, Tool) []Tool { return nil },
	}
	return g.compose(newWanted(inet.IPv4, Options{MasqueradeBit: 14, Mode: m, Log: slog.New(slog.DiscardHandler)}))
}

type entries = map[ipset.Entry]bool

// history is a guard with what was asked of it.
type history struct {
	t             *testing.T
	seed          uint64
	step          int
	r             *rand.Rand
	k             *kernel
	g             *legacy
	want, applied map[balancer.Key]*balancer.Frontend
	held, owned   map[netip.Addr]bool
	clamps        entries // as last specified
}

// addresses are the entries of sets of addresses.
func addresses(of ...map[netip.Addr]bool) entries {
	all := entries{}
	for _, addrs := range of {
		for a := range addrs {
			all[ipset.Entry{Addr: a}] = true
		}
	}
	return all
}

// toggle makes an address come or go, among those that frontends are on.
func toggle(r *rand.Rand, all map[netip.Addr]bool, network byte, count func(netip.Addr, int)) {
	a := netip.AddrFrom4([4]byte{10, network, 0, byte(r.IntN(3))})
	if all[a] {
		delete(all, a)
		count(a, -1)
		return
	}
	all[a] = true
	count(a, 1)
}

// specified is the specification: the entries of every set, from scratch, and those that may be there besides, because
// nobody knows what the frontend at their place is.
func (h *history) specified(want, applied map[balancer.Key]*balancer.Frontend) (all, besides map[string]entries) {
	all, besides = map[string]entries{}, map[string]entries{}
	if len(want)+len(applied)+len(h.held)+len(h.owned) == 0 {
		return all, besides // the guard is not there
	}
	unknown := map[ipset.Entry]bool{}
	for _, f := range applied {
		if f.Service == "" {
			unknown[placeOf(f.Key)] = true
		}
	}
	for _, s := range setDefs() {
		name := setName(s.name, inet.IPv4)
		collect := func(frontends map[balancer.Key]*balancer.Frontend) entries {
			all := entries{}
			for _, f := range frontends {
				if s.entries == nil {
					continue
				}
				for _, e := range s.entries(f) {
					all[e] = true
				}
			}
			return all
		}
		if s.name == clampsSet {
			h.clamps = collect(want)
			maps.Copy(h.clamps, collect(applied))
		}
		if s.native || s.ipvs && !h.g.plan.mode.LocalIn {
			continue
		}
		all[name], besides[name] = entries{}, entries{}
		switch {
		case s.name == heldSet:
			maps.Copy(all[name], addresses(h.held, h.owned))
		case s.name == ownedSet:
			maps.Copy(all[name], addresses(h.owned))
		case s.early:
			all[name] = collect(want)
			maps.Copy(all[name], collect(applied))
			for e := range h.k.sets[name] {
				besides[name][e] = unknown[at(e)]
			}
		default:
			both := collect(applied)
			all[name] = collect(want)
			maps.DeleteFunc(all[name], func(e ipset.Entry, _ bool) bool { return !both[e] })
		}
	}
	plain := all[setName(frontendsSet, inet.IPv4)]
	if h.g.plan.mode.Marked { // the mode knows them
		clear(plain)
		clear(besides[setName(frontendsSet, inet.IPv4)])
	}
	for _, of := range []map[string]entries{all, besides} {
		for e, is := range of[setName(specialSet, inet.IPv4)] {
			if is && (all[setName(specialSet, inet.IPv4)][e] || h.k.sets[setName(specialSet, inet.IPv4)][e]) {
				delete(plain, e)
			}
		}
	}
	return all, besides
}

// TestGuardHistories holds the sets to the specification over random histories of wanted and applied states, with
// failing operations, restarts and damage, and what others have to what it was.
func TestGuardHistories(t *testing.T) {
	for seed := range uint64(testwait.Soak(16, 200)) {
		h := &history{
			t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 3)), k: newKernel(t), want: map[balancer.Key]*balancer.Frontend{},
			applied: map[balancer.Key]*balancer.Frontend{}, held: map[netip.Addr]bool{}, owned: map[netip.Addr]bool{},
		}
		h.k.chains["filter INPUT"] = []string{"-j FOREIGN"}
		h.k.sets["foreign"] = map[ipset.Entry]bool{}
		h.restart()
		for h.step = range 40 {
			h.k.fail = nil
			if h.r.IntN(3) == 0 {
				h.k.fail = func() error {
					if h.r.IntN(12) == 0 {
						return errors.New("a fault")
					}
					return nil
				}
			}
			h.round()
		}
	}
}

// mode returns one that is, or two that serve at once.
func (h *history) mode() dataplane.Needs {
	all := []dataplane.Needs{{}, {Forward: true}, {Forward: true, Marked: true, TranslatesAll: true, Resets: true}, {Forward: true, LocalIn: true}}
	return all[h.r.IntN(len(all))]
}

// restart makes another guard over what is there.
func (h *history) restart() {
	h.g = guardOver(h.k, h.mode())
	for a := range h.held {
		h.g.hold(a, 1)
	}
	for a := range h.owned {
		h.g.own(a, 1)
	}
	for _, f := range h.want {
		h.g.want(f, 1, false)
	}
	for _, f := range h.applied {
		h.g.want(f, 1, true)
	}
}

// damage takes entries, rules and jumps away.
func (h *history) damage() {
	for set, entries := range h.k.sets {
		for e := range entries {
			if set != "foreign" && h.r.IntN(3) == 0 {
				delete(entries, e)
			}
		}
	}
	for chain, rules := range h.k.chains {
		h.k.chains[chain] = slices.DeleteFunc(rules, func(r string) bool { return strings.Contains(r, "VIPD-") && h.r.IntN(3) == 0 })
	}
}

// round makes one round of the engine.
func (h *history) round() {
	switch h.r.IntN(12) {
	case 0:
		h.restart()
	case 1:
		h.damage()
		h.g.resync()
	case 2:
		h.g.setMode(h.mode())
		h.g.obey()
	case 3:
		h.g.connect([]Interface{{"eth0", 2}, {"eth1", 3}}[:1+h.r.IntN(2)])
		h.g.obey()
	}
	edit(h.r, h.g.wanted, h.want)
	toggle(h.r, h.held, 96, h.g.hold)
	toggle(h.r, h.owned, 97, h.g.own)
	if h.g.prepare(h.t.Context()) == nil && h.g.needed() {
		h.checkPrepared()
		for _, f := range h.want {
			if err := h.g.restricts(f, false); (isRestricted(f) || h.g.isOwned(f)) && err != nil {
				h.fatalf("after prepare, %s is held back: %v", f.Key, err)
			}
		}
	}
	h.checkRestricted()
	if h.r.IntN(4) > 0 {
		follow(h.r, h.g, h.applied, h.want)
	}
	if h.g.finish(h.t.Context()) != nil {
		return
	}
	all, besides := h.specified(h.want, h.applied)
	got := maps.Clone(h.k.sets)
	delete(got, "foreign")
	for name := range got {
		want := maps.Clone(all[name])
		for e, may := range besides[name] {
			if may && got[name][e] && want != nil {
				want[e] = true
			}
		}
		if name == setName(arrivedSet, inet.IPv4) {
			continue
		}
		if !maps.Equal(got[name], want) {
			h.fatalf("set %s got\n%v\nwant\n%v", name, got[name], want)
		}
	}
	if clamps := slices.SortedFunc(maps.Keys(h.clamps), ipset.Entry.Compare); h.g.needed() && !slices.Equal(h.g.plan.clamps, clamps) {
		h.fatalf("the rules clamp\n%v\nwant\n%v", h.g.plan.clamps, clamps)
	}
	for name, want := range all {
		direct := name == setName(directSet, inet.IPv4) || name == setName(tunnelsSet, inet.IPv4)
		if got[name] == nil && (!direct || len(all[setName(directSet, inet.IPv4)]) > 0) {
			h.fatalf("there is no set %s for %v", name, want)
		}
	}
	h.checkRules()
	h.k.fail = nil
	if reason, err := h.g.intact(h.t.Context()); reason != "" || err != nil {
		h.fatalf("not intact: %q, %v", reason, err)
	}
	if h.r.IntN(16) == 0 {
		h.checkNoticed()
	}
}

// checkNoticed takes away one rule or jump of ours, and puts it back.
func (h *history) checkNoticed() {
	h.t.Helper()
	for chain, rules := range h.k.chains {
		for i, r := range rules {
			if !strings.Contains(r+chain, "VIPD-") {
				continue
			}
			h.k.chains[chain] = slices.Delete(slices.Clone(rules), i, i+1)
			if reason, err := h.g.intact(h.t.Context()); reason == "" || err != nil {
				h.fatalf("without the rule %q of %s: %q, %v", r, chain, reason, err)
			}
			h.k.chains[chain] = rules
		}
	}
}

func (h *history) fatalf(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf("seed %d step %d: %s", h.seed, h.step, fmt.Sprintf(format, args...))
}

// edit makes random frontends come, change and go.
func edit(r *rand.Rand, g *wanted, frontends map[balancer.Key]*balancer.Frontend) {
	for range r.IntN(4) {
		f := frontend(fmt.Sprintf("10.%d.0.%d:%d", 96+r.IntN(6), r.IntN(3), 80+r.IntN(2)))
		if r.IntN(3) == 0 {
			sources([]string{"10.0.0.0/8", "0.0.0.0/0", "192.0.2.0/24", "198.51.100.0/24", "fd00::/8"}[r.IntN(5)], "198.51.100.7/32")(f)
		}
		switch r.IntN(6) {
		case 0, 1:
			dropping(f)
		case 2:
			f.Backends = nil
		case 3:
			f.Backends[0].State = []balancer.BackendState{balancer.Draining, balancer.Removed}[r.IntN(2)]
		}
		f.NodePort = r.IntN(4) == 0
		f.MSS = []int{0, 0, 1200, 1300}[r.IntN(4)]
		f.Roams = r.IntN(4) == 0
		if r.IntN(8) == 0 {
			f.Forward = []balancer.Forward{balancer.DRForward, balancer.TunnelForward}[r.IntN(2)]
		}
		for i := range f.Backends {
			f.Backends[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(3))}), 8080)
		}
		f.SNAT = []balancer.SNAT{balancer.AutoSNAT, balancer.AutoSNAT, balancer.AlwaysSNAT, balancer.NeverSNAT}[r.IntN(4)]
		if old := frontends[f.Key]; old != nil {
			g.want(old, -1, false)
			delete(frontends, f.Key)
			if r.IntN(2) == 0 {
				continue
			}
		}
		g.want(f, 1, false)
		frontends[f.Key] = f
	}
}

// follow makes applied what is wanted, but for keys of which nothing is known.
func follow(r *rand.Rand, g *legacy, applied, want map[balancer.Key]*balancer.Frontend) {
	for _, f := range applied {
		g.want(f, -1, true)
	}
	clear(applied)
	for k, f := range want {
		if r.IntN(8) == 0 {
			f = &balancer.Frontend{Key: k}
		}
		g.want(f, 1, true)
		applied[k] = f
	}
}

// checkPrepared holds every early entry to being there after prepare, and every other to being what is wanted: what is
// to serve is not rejected, and what is not to serve is not open.
func (h *history) checkPrepared() {
	h.t.Helper()
	all, _ := h.specified(h.want, h.applied)
	asked, _ := h.specified(h.want, h.want)
	for _, s := range setDefs() {
		name := setName(s.name, inet.IPv4)
		if s.early {
			for e := range all[name] { // none where the form has no such set
				if !h.k.sets[name][e] {
					h.fatalf("after prepare, %s lacks %v", s.name, e)
				}
			}
			continue
		}
		for e := range h.k.sets[name] {
			if !asked[name][e] {
				h.fatalf("after prepare, %s still has %v", s.name, e)
			}
		}
	}
	// What is special must not be taken for something else first.
	for e := range all[setName(specialSet, inet.IPv4)] {
		if h.k.sets[setName(frontendsSet, inet.IPv4)][e] {
			h.fatalf("after prepare, the special %v is among the others", e)
		}
	}
	for e := range h.k.sets[setName(specialSet, inet.IPv4)] {
		if !contains(h.g.plan.vips, e.Addr) {
			h.fatalf("after prepare, %v does not contain %v", h.g.plan.vips, e)
		}
	}
	h.checkRules()
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// checkRestricted holds what may be applied, whatever has failed, to being restricted by sets and rules: no more than the
// guard asked for comes in.
func (h *history) checkRestricted() {
	h.t.Helper()
	for _, f := range h.want {
		if h.g.isOwned(f) && h.g.restricts(f, false) == nil && (!contains(h.g.plan.owned, f.Addr) || len(h.k.chains["mangle VIPD-OTHERS"]) == 0 ||
			!h.k.sets[setName(ownedSet, inet.IPv4)][ipset.Entry{Addr: f.Addr}] || !slices.Contains(h.k.chains["mangle PREROUTING"], "-j VIPD-OTHERS")) {
			h.fatalf("%s may be applied, and no rules keep it silent while another host has it", f.Key)
		}
		if !isRestricted(f) || h.g.restricts(f, false) != nil {
			continue
		}
		for _, name := range []string{restrictedSet, specialSet} {
			if !h.k.sets[setName(name, inet.IPv4)][placeOf(f.Key)] {
				h.fatalf("%s may be applied, and %s lacks it", f.Key, name)
			}
		}
		if !contains(h.g.plan.vips, f.Addr) || h.k.chains["mangle VIPD-ARRIVING"] == nil || !slices.ContainsFunc(h.k.chains["mangle PREROUTING"], func(r string) bool { return strings.HasSuffix(r, "-j VIPD-PREROUTING") }) {
			h.fatalf("%s may be applied, and no rules lead to its source ranges", f.Key)
		}
	}
}

// checkRules holds chains and jumps to those of the plan.
func (h *history) checkRules() {
	h.t.Helper()
	want := map[string][]string{}
	if _, present := h.k.sets[setName(heldSet, inet.IPv4)]; present {
		for _, p := range h.g.parts {
			if !h.g.wants(p) {
				continue
			}
			for _, c := range p.def.chains(&h.g.plan) {
				want[p.def.table+" "+c.Name] = c.Rules
			}
			for _, j := range p.def.jumps(&h.g.plan) {
				want[p.def.table+" "+j.base] = append(want[p.def.table+" "+j.base], j.rule)
			}
		}
	}
	for chain, rules := range h.k.chains {
		ours := slices.DeleteFunc(slices.Clone(rules), func(r string) bool { return r == "-j FOREIGN" })
		if !strings.Contains(chain, "VIPD-") {
			slices.Sort(ours)
			slices.Sort(want[chain])
		}
		if !slices.Equal(ours, want[chain]) {
			h.fatalf("chain %s has\n%q\nwant\n%q", chain, ours, want[chain])
		}
		delete(want, chain)
	}
	if len(want) != 0 {
		h.fatalf("there are no chains %v", want)
	}
	if !slices.Contains(h.k.chains["filter INPUT"], "-j FOREIGN") || h.k.sets["foreign"] == nil {
		h.fatalf("what others have was touched")
	}
}

// TestLacking takes away what kernels may lack: the rest is there, and what is lost is a problem where it matters.
func TestLacking(t *testing.T) {
	forwards, ipvs := dataplane.Needs{Forward: true}, dataplane.Needs{Forward: true, LocalIn: true}
	for _, c := range []struct {
		name string
		// refuse is what rules contain that the kernel refuses.
		refuse string
		kind   ipset.Kind
		// absent is in no rule then, present in some.
		absent, present string
		mode            dataplane.Needs
		problems        []string
	}{
		{"nothing", "none", "", "none", "--random-fully", forwards, nil},
		{"programs", "-m bpf", "", "-m bpf", "--random-fully", forwards, nil},
		{"random ports", "--random-fully", "", "--random-fully", "-m bpf", forwards, nil},
		{"both", "VIPD-TRIAL", "", "-m bpf", "-j MASQUERADE", forwards, nil},
		{"networks in sets", "none", ipset.HashIPPortNet, "vipd-allowed4", "vipd-silent4", forwards, []string{"source_ranges are not enforced"}},
		{"NAT", "MASQUERADE", "", "-j VIPD-MASQUERADE", "VIPD-FORWARD", forwards, []string{"node ports, snat"}},
		{"marks of connections", "CONNMARK", "", "CONNMARK", "VIPD-HELD", dataplane.Needs{}, []string{"source_ranges are not enforced", "are rejected"}},
		{"refusing", "REJECT", "", "REJECT", "VIPD-ARRIVING", dataplane.Needs{}, []string{"answer on every port", "may reach a program"}},
		{"nothing, with virtual servers", "none", "", "none", "--add-set vipd-arrived4 ", ipvs, nil},
		{"interfaces in sets", "none", ipset.HashNetIface, "vipd-arrived4", "-m bpf", ipvs, []string{"behind one interface do not work in ipvs mode"}},
		{"interfaces that nobody needs", "none", ipset.HashNetIface, "vipd-arrived4", "-m bpf", forwards, nil},
		{"leaving alone", "--notrack", "", "--notrack", "VIPD-DIRECT-TO", ipvs, []string{"by dr and tunnel are tracked"}},
		{"letting through", "VIPD-DIRECT", "", "VIPD-DIRECT", "--notrack", ipvs, []string{"forward = \"dr\""}},
		{"all, and forwarding", "VIPD-", "", "VIPD-", "", forwards, []string{
			"answer on every port", "source_ranges are not enforced", "are rejected", "may reach a program", "not recognised", "policy of FORWARD", "behind one interface do not work", "node ports, snat"}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			k := newKernel(t)
			k.refuse, k.lacks = c.refuse, c.kind
			g := guardOver(k, c.mode)
			f := []*balancer.Frontend{
				frontend("10.96.0.1:80", sources("10.0.0.0/8")), frontend("10.96.0.1:81", dropping),
				frontend("10.96.0.1:82", func(f *balancer.Frontend) { f.Backends = nil }),
			}
			if c.mode.LocalIn {
				f = append(f, frontend("10.96.0.1:83", forward(balancer.TunnelForward)))
			}
			for _, f := range f {
				g.want(f, 1, false)
				g.want(f, 1, true)
			}
			g.hold(f[0].Addr, 1)
			err := errors.Join(g.prepare(t.Context()), g.finish(t.Context()))
			if err != nil { // what is refused may be taken in a moment
				time.Sleep(refusedAfter)
				err = errors.Join(g.prepare(t.Context()), g.finish(t.Context()))
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.absent != "none" && k.users(c.absent) != 0 || c.present != "" && k.users(c.present) == 0 {
				t.Errorf("%d rules with %s, %d with %s:\n%q", k.users(c.absent), c.absent, k.users(c.present), c.present, k.chains)
			}
			var got []string
			for _, p := range g.problems() {
				got = append(got, p.Text)
			}
			if len(got) != len(c.problems) {
				t.Fatalf("problems: got %q, want %q", got, c.problems)
			}
			for i := range got {
				if !strings.Contains(got[i], c.problems[i]) {
					t.Errorf("problem: got %q, want %q", got[i], c.problems[i])
				}
			}
			if reason, err := g.intact(t.Context()); reason != "" || err != nil {
				t.Errorf("not intact: %q, %v", reason, err)
			}
			k.refuse, k.lacks = "", "" // a newer kernel
			g.resync()
			if err := errors.Join(g.prepare(t.Context()), g.finish(t.Context())); err != nil || len(g.problems()) != 0 {
				t.Errorf("after all: %v, %v", err, g.problems())
			}
		})
	}
}

// inBubble runs a test whose time does not take any.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// TestRefusedForAMoment has the kernel refuse a part for some time: the engine is told at first, nothing is logged or
// reported all the time after that, and in seconds after the kernel takes it the part is there.
func TestRefusedForAMoment(t *testing.T) {
	for _, lasting := range []time.Duration{0, time.Second, 8 * time.Second, time.Hour} {
		inBubble(t, lasting.String(), func(t *testing.T) {
			k := newKernel(t)
			g := guardOver(k, dataplane.Needs{Forward: true})
			f := frontend("10.96.0.1:80", sources("10.0.0.0/8"))
			g.want(f, 1, false)
			k.refuse = "CONNMARK"
			began := time.Now()
			if err := g.prepare(t.Context()); err == nil {
				t.Fatal("the first refusal is no error")
			}
			for time.Since(began) < lasting {
				time.Sleep(time.Second)
				err := g.prepare(t.Context())
				late := time.Since(began) > refusedAfter
				if late && err != nil {
					t.Fatalf("after %v: %v", time.Since(began), err)
				}
				if late = time.Since(began) >= refusedAfter; g.restricts(f, false) == nil || (g.restricts(f, true) == nil) != late {
					t.Fatalf("after %v it is to be served: %v in a mode that does not restrict, %v in one that does",
						time.Since(began), g.restricts(f, false), g.restricts(f, true))
				}
			}
			if lasting == time.Hour {
				k.ops = 0
				for range 60 { // the engine, and the looks in between
					time.Sleep(time.Second)
					g.retry(t.Context())
					if err := g.prepare(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				// A try is two lists of jumps, and the input.
				if k.ops > 2*3 {
					t.Errorf("%d operations in a minute of what is refused for good", k.ops)
				}
			}
			k.refuse = ""
			bound := 2*lasting + 2*time.Second
			if lasting <= refusedAfter { // the engine's own backoff
				if err := g.prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for until := time.Now().Add(min(bound, refusalMax)); time.Now().Before(until); time.Sleep(time.Second) {
				g.retry(t.Context())
			}
			if k.users("--match-set vipd-restricted4 ") == 0 || len(g.problems()) > 0 {
				t.Errorf("%v later: %d rules over restricted frontends, problems %v", bound, k.users("--match-set vipd-restricted4 "), g.problems())
			}
			if reason, err := g.intact(t.Context()); reason != "" || err != nil {
				t.Errorf("not intact: %q, %v", reason, err)
			}
			if err := errors.Join(g.prepare(t.Context()), g.restricts(f, false)); err != nil {
				t.Errorf("with the guard in place it is not to be served: %v", err)
			}
		})
	}
}

// unproved is a kernel that says of nothing that it was written.
type unproved struct{ *kernel }

func (unproved) wrote(context.Context, Tool, string, map[string]int, map[string]int) error {
	return errors.New("the rules changed while they were listed")
}

// TestRetryIsProved: a part that was refused is mended once it is seen in the kernel, and tried again until then.
func TestRetryIsProved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t)
		g := guardOver(k, dataplane.Needs{Forward: true})
		g.want(frontend("10.96.0.1:80", sources("10.0.0.0/8")), 1, false)
		k.refuse = "CONNMARK"
		_ = g.prepare(t.Context())
		time.Sleep(refusedAfter)
		if err := g.prepare(t.Context()); err != nil || len(g.problems()) == 0 {
			t.Fatalf("it is not done without: %v", err)
		}
		k.refuse, g.watch = "", unproved{k}
		time.Sleep(refusalMax)
		if g.retry(t.Context()) || len(g.problems()) == 0 {
			t.Error("what was not seen in the kernel is taken for mended")
		}
		maps.DeleteFunc(k.chains, func(_ string, rules []string) bool { return strings.Contains(strings.Join(rules, " "), "CONNMARK") })
		g.watch = k
		time.Sleep(refusalFirst)
		if !g.retry(t.Context()) || k.users("--match-set vipd-restricted4 ") == 0 || len(g.problems()) > 0 {
			t.Errorf("it was not written again: %v", g.problems())
		}
	})
}

// TestGuardBudget holds the work of one change to what it changes.
func TestGuardBudget(t *testing.T) {
	k := newKernel(t)
	g := guardOver(k, dataplane.Needs{Forward: true})
	both := func(f *balancer.Frontend, by int) {
		g.want(f, by, false)
		g.want(f, by, true)
	}
	g.hold(netip.MustParseAddr("10.96.0.1"), 1)
	for port := range 2000 {
		both(frontend(fmt.Sprintf("10.96.0.1:%d", 1+port)), 1)
	}
	if err := errors.Join(g.prepare(t.Context()), g.finish(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		do   func()
		want int
	}{
		{"nothing", func() {}, 0},
		{"a frontend's backends", func() {
			both(frontend("10.96.0.1:80"), -1)
			both(frontend("10.96.0.1:80"), 1)
		}, 0},
		{"one frontend more", func() { both(frontend("10.96.0.1:5000"), 1) }, 2},
		{"one frontend less", func() { both(frontend("10.96.0.1:5000"), -1) }, 2},
	} {
		before := k.ops
		c.do()
		if err := errors.Join(g.prepare(t.Context()), g.finish(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := k.ops - before; got != c.want {
			t.Errorf("%s: %d operations, want %d", c.name, got, c.want)
		}
	}
}
