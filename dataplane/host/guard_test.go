package host

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

	"vipd/balancer"
	"vipd/dataplane/internal/ipset"
)

// kernel is a strict stand-in for ipsets and rules of one family: it refuses what the kernel refuses, and fails when
// told to.
type kernel struct {
	t     *testing.T
	sets  map[string]map[ipset.Entry]bool
	kinds map[string]ipset.Kind
	// chains holds rules by table and chain, such as "filter VIPD-GUARD".
	chains map[string][]string
	// fail returns an error for some operations; nil: none fails.
	fail func() error
	ops  int
}

func newKernel(t *testing.T) *kernel {
	return &kernel{
		t: t, sets: map[string]map[ipset.Entry]bool{}, kinds: map[string]ipset.Kind{},
		chains: map[string][]string{
			"filter INPUT": nil, "filter FORWARD": nil, "filter OUTPUT": nil, "mangle PREROUTING": nil, "mangle OUTPUT": nil,
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

func (k *kernel) Create(set string, kind ipset.Kind, _ ipset.Family) error {
	if err := k.op(); err != nil {
		return err
	}
	if old, ok := k.kinds[set]; ok && old != kind {
		return ipset.ErrDifferent
	}
	if k.sets[set] == nil {
		k.sets[set], k.kinds[set] = map[ipset.Entry]bool{}, kind
	}
	return nil
}

func (k *kernel) Destroy(set string) error {
	if err := k.op(); err != nil {
		return err
	}
	if k.users("--match-set "+set+" ") > 0 {
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
	return ipset.Header{Kind: k.kinds[set], Elements: len(k.sets[set]), References: k.users("--match-set " + set + " ")}, nil
}

func (k *kernel) Restore(_ context.Context, input string) error {
	if err := k.op(); err != nil {
		return err
	}
	table := ""
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		switch {
		case line[0] == '*':
			table = line[1:]
		case line[0] == ':':
			k.chains[table+" "+strings.Fields(line[1:])[0]] = nil
		case strings.HasPrefix(line, "-A "):
			words := strings.SplitN(line, " ", 3)
			for i, w := range strings.Fields(line) {
				if w == "--match-set" && k.sets[strings.Fields(line)[i+1]] == nil {
					return fmt.Errorf("the set of %q does not exist", line)
				}
			}
			chain := table + " " + words[1]
			k.chains[chain] = append(k.chains[chain], words[2])
		}
	}
	return nil
}

func (k *kernel) EnsureJump(_ context.Context, table, chain string, _ bool, rule ...string) error {
	if err := k.op(); err != nil {
		return err
	}
	c, text := table+" "+chain, strings.Join(rule, " ")
	if !slices.Contains(k.chains[c], text) {
		k.chains[c] = slices.Insert(k.chains[c], 0, text)
	}
	return nil
}

func (k *kernel) RemoveJumpsTo(_ context.Context, table, chain string, targets ...string) ([]string, error) {
	if err := k.op(); err != nil {
		return nil, err
	}
	c := table + " " + chain
	k.chains[c] = slices.DeleteFunc(k.chains[c], func(r string) bool {
		return slices.ContainsFunc(targets, func(t string) bool { return strings.HasSuffix(r, "-j "+t) })
	})
	return nil, nil
}

func (k *kernel) ChainExists(_ context.Context, table, chain string) (bool, error) {
	_, ok := k.chains[table+" "+chain]
	return ok, k.op()
}

func (k *kernel) DeleteChains(_ context.Context, table string, chains ...string) error {
	if err := k.op(); err != nil {
		return err
	}
	for _, c := range chains {
		if k.users("-j "+c+" ") > 0 {
			return fmt.Errorf("chain %s is in use", c)
		}
		delete(k.chains, table+" "+c)
	}
	return nil
}

func guardOver(k *kernel, family ipset.Family) *guard {
	g := &guard{
		family: family, sets: k, log: slog.New(slog.DiscardHandler),
		tool:   func(context.Context) (ruleKernel, error) { return k, k.op() },
		others: func(context.Context, ruleKernel) []ruleKernel { return nil },
	}
	return g.compose()
}

// wanted is the specification: the entries of every set, from scratch.
func wanted(want, applied map[balancer.Key]*balancer.Frontend, held map[netip.Addr]bool) map[string]map[ipset.Entry]bool {
	all := map[string]map[ipset.Entry]bool{}
	for _, def := range parts() {
		for i, s := range def.sets {
			collect := func(frontends map[balancer.Key]*balancer.Frontend) map[ipset.Entry]bool {
				entries := map[ipset.Entry]bool{}
				for _, f := range frontends {
					for _, e := range s.entries(f) {
						entries[e] = true
					}
				}
				return entries
			}
			entries := map[ipset.Entry]bool{}
			nobody := false // passes the gate
			switch {
			case s.name == heldSet:
				for a := range held {
					entries[ipset.Entry{Addr: a}] = true
				}
				nobody = len(entries) == 0
			case s.early:
				entries = collect(want)
				maps.Copy(entries, collect(applied))
				nobody = len(entries) == 0
			default:
				entries = collect(want)
				nobody = len(entries) == 0
				both := collect(applied)
				maps.DeleteFunc(entries, func(e ipset.Entry, _ bool) bool { return !both[e] })
			}
			if i == 0 && nobody {
				break // so the part is not there
			}
			all[setName(s.name, ipset.IPv4)] = entries
		}
	}
	return all
}

// TestGuardHistories holds the sets to the specification over random histories of wanted and applied states, with
// failing operations, restarts and damage, and what others have to what it was.
func TestGuardHistories(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		k := newKernel(t)
		k.chains["filter INPUT"] = []string{"-j FOREIGN"}
		k.sets["foreign"] = map[ipset.Entry]bool{}
		g := guardOver(k, ipset.IPv4)
		want, applied, held := map[balancer.Key]*balancer.Frontend{}, map[balancer.Key]*balancer.Frontend{}, map[netip.Addr]bool{}
		for step := range 40 {
			k.fail = nil
			if r.IntN(3) == 0 {
				k.fail = func() error {
					if r.IntN(6) == 0 {
						return errors.New("a fault")
					}
					return nil
				}
			}
			switch r.IntN(12) {
			case 0: // a restart: another guard over what is there
				g = guardOver(k, ipset.IPv4)
				for a := range held {
					g.held.want(ipset.Entry{Addr: a}, 1)
				}
				for _, f := range want {
					g.want(f, 1, false)
				}
				for _, f := range applied {
					g.want(f, 1, true)
				}
			case 1: // damage, noticed
				for _, entries := range k.sets {
					for e := range entries {
						if r.IntN(3) == 0 {
							delete(entries, e)
						}
					}
				}
				g.resync()
			}
			edit(r, g, want)
			a := netip.AddrFrom4([4]byte{10, 96, 0, byte(r.IntN(3))})
			if by := 1; held[a] {
				delete(held, a)
				g.held.want(ipset.Entry{Addr: a}, -by)
			} else {
				held[a] = true
				g.held.want(ipset.Entry{Addr: a}, by)
			}
			if err := g.prepare(t.Context()); err == nil {
				checkPrepared(t, seed, step, k, wanted(want, applied, held), wanted(want, want, held))
			}
			if r.IntN(4) > 0 {
				follow(r, g, applied, want)
			}
			if err := g.finish(t.Context()); err != nil {
				continue
			}
			got := maps.Clone(k.sets)
			delete(got, "foreign")
			if want := wanted(want, applied, held); !maps.EqualFunc(got, want, maps.Equal) {
				t.Fatalf("seed %d step %d: sets got\n%v\nwant\n%v", seed, step, got, want)
			}
			checkRules(t, seed, step, k)
			k.fail = nil
			if reason, err := g.intact(); reason != "" || err != nil {
				t.Fatalf("seed %d step %d: not intact: %q, %v", seed, step, reason, err)
			}
		}
	}
}

// edit makes random frontends come, change and go.
func edit(r *rand.Rand, g *guard, frontends map[balancer.Key]*balancer.Frontend) {
	for range r.IntN(4) {
		f := frontend(fmt.Sprintf("10.96.0.%d:%d", r.IntN(3), 80+r.IntN(3)))
		if r.IntN(3) == 0 {
			sources([]string{"10.0.0.0/8", "0.0.0.0/0", "192.0.2.0/24", "fd00::/8"}[r.IntN(4)], "198.51.100.7/32")(f)
		}
		switch r.IntN(6) {
		case 0, 1:
			dropping(f)
		case 2:
			f.Backends = nil
		case 3:
			f.Backends[0].State = balancer.Draining
		}
		f.NodePort = r.IntN(4) == 0
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
func follow(r *rand.Rand, g *guard, applied, want map[balancer.Key]*balancer.Frontend) {
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
func checkPrepared(t *testing.T, seed uint64, step int, k *kernel, all, asked map[string]map[ipset.Entry]bool) {
	t.Helper()
	for _, def := range parts() {
		for _, s := range def.sets {
			name := setName(s.name, ipset.IPv4)
			if s.early {
				for e := range all[name] {
					if !k.sets[name][e] {
						t.Fatalf("seed %d step %d: after prepare, %s lacks %v", seed, step, s.name, e)
					}
				}
				continue
			}
			for e := range k.sets[name] {
				if !asked[name][e] && all[setName(def.sets[0].name, ipset.IPv4)] != nil {
					t.Fatalf("seed %d step %d: after prepare, %s still has %v", seed, step, s.name, e)
				}
			}
		}
	}
}

// checkRules holds chains and jumps to those of the parts that are there.
func checkRules(t *testing.T, seed uint64, step int, k *kernel) {
	t.Helper()
	for _, def := range parts() {
		present := k.sets[setName(def.sets[0].name, ipset.IPv4)] != nil
		rules, there := k.chains[def.table+" "+def.chain]
		if there != present || present && len(rules) != len(def.rules(ipset.IPv4)) {
			t.Fatalf("seed %d step %d: chain %s has %q, its sets are there: %t", seed, step, def.chain, rules, present)
		}
		if jumps := k.users("-j " + def.chain + " "); jumps != len(def.bases) && present || jumps != 0 && !present {
			t.Fatalf("seed %d step %d: %d jumps to %s, its sets are there: %t", seed, step, jumps, def.chain, present)
		}
	}
	if !slices.Contains(k.chains["filter INPUT"], "-j FOREIGN") || k.sets["foreign"] == nil {
		t.Fatalf("seed %d step %d: what others have was touched", seed, step)
	}
}

// TestGuardBudget holds the work of one change to what it changes.
func TestGuardBudget(t *testing.T) {
	k := newKernel(t)
	g := guardOver(k, ipset.IPv4)
	both := func(f *balancer.Frontend, by int) {
		g.want(f, by, false)
		g.want(f, by, true)
	}
	g.held.want(ipset.Entry{Addr: netip.MustParseAddr("10.96.0.1")}, 1)
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
		{"one frontend more", func() { both(frontend("10.96.0.1:5000"), 1) }, 1},
		{"one frontend less", func() { both(frontend("10.96.0.1:5000"), -1) }, 1},
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
