package balancer

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"vipd/balancer/snap"
)

// Compiler compiles one state after the other, with work only for what changed between them, and remembers what one state has
// to say in the next. The zero value is ready; its first Next compiles everything. It is used by one goroutine.
//
// Goals, and how each is met:
//  1. The same answer as the specification with the same memory: a law test compares Compiler with Compile (specification_test.go).
//  2. Work for a change grows with the change: Diff of each input names the dirty services, an index those that name a changed
//     address, their old and new claims name the dirty keys, and only the claimants of those keys have their problems made again.
//  3. What comes out equal keeps its pointer, so that later comparisons find no difference.
type Compiler struct {
	// Memory is what the next Next takes into account of those before.
	Memory Memory

	env       Env
	in        Inputs
	out       Desired
	units     map[Name]*unit
	claimants map[Key][]*Service // of each claimed key, in no order
	index     AddressIndex
}

// work is what one Next has to do.
type work struct {
	services  map[Name]bool       // to be compiled again
	keys      map[Key]bool        // to be resolved again
	addresses map[netip.Addr]bool // to be counted again
	problems  map[Name]bool       // whose problems are to be made again
	standings map[netip.Addr]bool // to be decided again
}

// maxRounds bounds the rounds of one Next, should two answers ever lead to each other.
const maxRounds = 8

// Next compiles env and in as they are at the time now. It fills in what follows from what is compiled, in place of what they
// have of it: Memory, and the addresses for node ports. Values that are equal to those of the call before keep their pointers.
//
// What is compiled has a say in what it is compiled from: drains begin and end, and a VIP is no place for node ports. Rounds
// take that in until one changes nothing of it, which is the second as a rule.
func (c *Compiler) Next(env Env, in Inputs, now time.Time) Desired {
	before := c.out
	c.Memory = c.Memory.Expire(now)
	for range maxRounds {
		addresses, memory := c.out.Addresses, c.Memory
		env.NodePortAddresses = nodePortAddresses(env.Local, addresses)
		c.Memory = memory.After(before, c.compile(env, in.Remembering(memory)), now)
		if c.out.Addresses == addresses && c.Memory == memory {
			break
		}
	}
	return c.out
}

// nodePortAddresses are those of the node's own addresses that are no VIPs; or, of a family in which all of them are, all.
func nodePortAddresses(own []netip.Addr, vips snap.Map[netip.Addr, int]) []netip.Addr {
	var open []netip.Addr
	for _, v4 := range []bool{true, false} {
		of := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return a.Is4() != v4 })
		if plain := slices.DeleteFunc(slices.Clone(of), vips.Has); len(plain) > 0 {
			of = plain
		}
		open = append(open, of...)
	}
	return open
}

// compile compiles what differs from the inputs before.
func (c *Compiler) compile(env Env, in Inputs) Desired {
	w := work{map[Name]bool{}, map[Key]bool{}, map[netip.Addr]bool{}, map[Name]bool{}, map[netip.Addr]bool{}}
	if c.units == nil {
		c.units, c.claimants = map[Name]*unit{}, map[Key][]*Service{}
	}
	c.concern(&w, &env, &in)
	c.dirty(&w, &in)
	c.env, c.in = env, in
	for name := range w.services {
		c.recompile(name, &w)
	}
	for key := range w.keys {
		c.resolve(key, &w)
	}
	for a := range w.addresses {
		c.count(a, 0)
		w.standings[a] = true
	}
	for name := range w.problems {
		c.report(name)
	}
	for a := range w.standings {
		c.stand(a)
	}
	return c.out
}

// concern marks what a change of the environment concerns. The host's addresses, and other nodes', come and go with containers
// and leases: only the services that name one of them are compiled again.
func (c *Compiler) concern(w *work, env *Env, in *Inputs) {
	if env.Standby != c.env.Standby {
		for a := range c.out.Standings.Keys() {
			w.standings[a] = true
		}
	}
	rest := c.env
	rest.Standby, rest.Local, rest.Networked, rest.Nodes = env.Standby, env.Local, env.Networked, env.Nodes
	rest.NodePortAddresses, rest.Reserved = env.NodePortAddresses, env.Reserved
	all := !reflect.DeepEqual(rest, *env) || !SameTrust(&c.env, env)
	nodePorts := !slices.Equal(c.env.NodePortAddresses, env.NodePortAddresses)
	reserved := map[uint16]bool{}
	for _, r := range changedReserved(&c.env, env) {
		if r.Port != 0 {
			reserved[r.Port] = true
		}
	}
	if all || nodePorts || len(reserved) > 0 {
		for name, s := range in.Services.All() {
			if all || slices.ContainsFunc(s.Ports, func(p Port) bool {
				return nodePorts && p.NodePort != 0 || fromEtcd(s) && (reserved[p.Port] || p.NodePort != 0 && reserved[p.NodePort])
			}) {
				w.services[name] = true
			}
		}
	}
	for _, a := range ChangedAddresses(&c.env, env) {
		for _, name := range c.index.At(a) {
			w.services[name] = true
		}
	}
}

// dirty finds what has to be done because the inputs differ from those of the last time.
func (c *Compiler) dirty(w *work, in *Inputs) {
	mark(w.services, c.in.Services, in.Services, func(n Name) Name { return n })
	mark(w.services, c.in.Endpoints, in.Endpoints, func(e EndpointID) Name { return e.Service })
	mark(w.services, c.in.Overrides, in.Overrides, func(t Target) Name { return t.Service })
	mark(w.services, c.in.Health, in.Health, func(t Target) Name { return t.Service })
	mark(w.services, c.in.Ejected, in.Ejected, func(t Target) Name { return t.Service })
	mark(w.keys, c.in.Drains, in.Drains, func(d DrainKey) Key { return d.Frontend })
	mark(w.keys, c.in.Ramps, in.Ramps, func(d DrainKey) Key { return d.Frontend })
	mark(w.addresses, c.in.Leaving, in.Leaving, func(a netip.Addr) netip.Addr { return a })
	mark(w.keys, c.in.Holders, in.Holders, func(k Key) Key { return k })
	mark(w.standings, c.in.Away, in.Away, func(a netip.Addr) netip.Addr { return a })
	c.resettle(w, in)
}

func mark[K snap.Ordered[K], V comparable, M comparable](marks map[M]bool, before, after snap.Map[K, V], of func(K) M) {
	for k := range snap.Diff(before, after) {
		marks[of(k)] = true
	}
}

// recompile makes the unit of one service again, and marks the keys that it claims or claimed.
func (c *Compiler) recompile(name Name, w *work) {
	old := c.units[name]
	if old != nil {
		for _, f := range old.claims {
			w.keys[f.Key] = true
			c.unclaim(f.Key, old.service)
		}
		delete(c.units, name)
	}
	w.problems[name] = true
	c.index.Update(name, &c.in)
	s, ok := c.in.Services.Get(name)
	if !ok {
		return
	}
	u := compileService(&c.env, s, &c.in)
	c.units[name] = u
	for _, f := range u.claims {
		w.keys[f.Key] = true
		c.claimants[f.Key] = append(c.claimants[f.Key], s)
	}
}

func (c *Compiler) unclaim(key Key, s *Service) {
	rest := slices.DeleteFunc(c.claimants[key], func(t *Service) bool { return t == s })
	if len(rest) == 0 {
		delete(c.claimants, key)
		return
	}
	c.claimants[key] = rest
}

// resolve decides who has key, and puts its frontend in place.
func (c *Compiler) resolve(key Key, w *work) {
	claimants := c.claimants[key]
	for _, s := range claimants {
		w.problems[s.Name] = true
	}
	c.out.Contested = c.out.Contested.Delete(key)
	w.standings[key.Addr] = true
	old := c.out.Frontends.At(key)
	if old != nil {
		w.problems[old.Service] = true
	}
	if len(claimants) == 0 {
		c.out.Frontends = c.out.Frontends.Delete(key)
		c.replace(old, nil)
		return
	}
	s := winner(key, claimants, &c.in)
	if len(claimants) > 1 {
		c.out.Contested = c.out.Contested.Set(key, s.Name)
	}
	claims := c.units[s.Name].claims
	i, _ := slices.BinarySearchFunc(claims, key, func(f *Frontend, k Key) int { return f.Key.Compare(k) })
	f := remembered(claims[i], &c.in)
	if f.Equal(old) {
		return
	}
	c.out.Frontends = c.out.Frontends.Set(key, f)
	c.replace(old, f)
}

// replace counts now instead of old on their VIPs.
func (c *Compiler) replace(old, now *Frontend) {
	if old != nil && now != nil && old.NodePort == now.NodePort {
		return
	}
	if old != nil && !old.NodePort {
		c.count(old.Addr, -1)
	}
	if now != nil && !now.NodePort {
		c.count(now.Addr, 1)
	}
}

// count changes the number of frontends on a VIP.
func (c *Compiler) count(a netip.Addr, by int) {
	n := c.out.Addresses.At(a) + by
	if n == 0 && !c.in.Leaving.Has(a) {
		c.out.Addresses = c.out.Addresses.Delete(a)
		return
	}
	c.out.Addresses = c.out.Addresses.Set(a, n)
}

// report makes the problems of one service again.
func (c *Compiler) report(name Name) {
	u := c.units[name]
	if u == nil {
		c.out.Problems = c.out.Problems.Delete(name)
		return
	}
	problems := slices.Clone(u.problems)
	for _, f := range u.claims {
		if w := winner(f.Key, c.claimants[f.Key], &c.in); w != u.service {
			problems = append(problems, u.lost(f, w))
		}
	}
	old := c.out.Problems.At(name)
	switch {
	case len(problems) == 0:
		c.out.Problems = c.out.Problems.Delete(name)
	case old == nil || !slices.Equal(*old, problems):
		c.out.Problems = c.out.Problems.Set(name, &problems)
	}
}
