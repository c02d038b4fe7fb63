package balancer

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"vipd/balancer/snap"
)

// Compiler compiles a sequence of states. Each call to Next processes only the differences, and
// passes its memory to the next call. The zero value is ready, and its first call compiles
// everything. Only one goroutine may use it.
//
// Goals, and how each is met:
//  1. The result equals the result of Compile, the specification, with the same memory. A test
//     compares the two (specification_test.go).
//  2. The cost depends on the size of the change. Diff of each input finds the changed services, and
//     an index adds the services that use a changed address. The keys of their old and new claims
//     are resolved again, and only services that claim these keys get new problems.
//  3. Equal results keep their pointers, so later comparisons find no difference.
type Compiler struct {
	// Memory is the state that each call to Next passes to the next call.
	Memory Memory

	env       Env
	in        Inputs
	out       Desired
	compiled  map[Name]*compiledService
	claimants claimants
	index     AddressIndex
}

// work is the set of objects that one call of Next must recompile.
type work struct {
	services  map[Name]bool       // recompile
	keys      map[Key]bool        // decide again which service holds them
	addresses map[netip.Addr]bool // recount their frontends
	problems  map[Name]bool       // publish their problems again
	vipStates map[netip.Addr]bool // decide their states again
}

// maxRounds limits how often one call to Next compiles, in case two results alternate forever.
const maxRounds = 8

// Next compiles env and in at the time now. It ignores the memory in the inputs and the
// NodePortAddresses in env. Both follow from the compiled state, so Next computes them itself.
// Equal values keep their pointers.
//
// The result affects its own inputs: it starts and ends drains, and a VIP prevents node ports at
// its address. Next therefore recompiles until nothing changes, usually twice.
func (c *Compiler) Next(env Env, in Inputs, now time.Time) Desired {
	before := c.out
	c.Memory = c.Memory.Expire(now)
	for range maxRounds {
		addresses, memory := c.out.Addresses, c.Memory
		env.NodePortAddresses = nodePortAddresses(env.Local, addresses)
		c.Memory = memory.After(before, c.compile(env, in.WithMemory(memory)), now)
		if c.out.Addresses == addresses && c.Memory == memory {
			break
		}
	}
	return c.out
}

// nodePortAddresses returns the node's own addresses that are not VIPs. If all of a family's
// addresses are VIPs, it returns all of them.
func nodePortAddresses(own []netip.Addr, vips snap.Map[netip.Addr, int]) []netip.Addr {
	var open []netip.Addr
	for _, v4 := range []bool{true, false} {
		family := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return a.Is4() != v4 })
		if plain := slices.DeleteFunc(slices.Clone(family), vips.Has); len(plain) > 0 {
			family = plain
		}
		open = append(open, family...)
	}
	return open
}

// compile compiles the differences from the previous inputs.
func (c *Compiler) compile(env Env, in Inputs) Desired {
	w := work{map[Name]bool{}, map[Key]bool{}, map[netip.Addr]bool{}, map[Name]bool{}, map[netip.Addr]bool{}}
	if c.compiled == nil {
		c.compiled, c.claimants = map[Name]*compiledService{}, newClaimants()
	}
	c.markEnvChanges(&w, &env, &in)
	c.markInputChanges(&w, &in)
	c.env, c.in = env, in
	for name := range w.services {
		c.recompile(name, &w)
	}
	c.resolveAll(&w)
	for a := range w.addresses {
		c.addFrontends(a, 0)
		w.vipStates[a] = true
	}
	for name := range w.problems {
		c.updateProblems(name)
	}
	for a := range w.vipStates {
		c.updateVIPState(a)
		c.updateDirect(a)
	}
	return c.out
}

// markEnvChanges marks the services that a change to the environment affects. Containers and DHCP
// leases often change hosts' addresses, so a changed address marks only the services that use it.
func (c *Compiler) markEnvChanges(w *work, env *Env, in *Inputs) {
	if env.Standby != c.env.Standby {
		for a := range c.out.VIPStates.Keys() {
			w.vipStates[a] = true
		}
	}
	unmarked := c.env
	unmarked.Standby = env.Standby
	unmarked.Local = env.Local
	unmarked.LocalInSubnets = env.LocalInSubnets
	unmarked.Nodes = env.Nodes
	unmarked.NodePortAddresses, unmarked.Reserved = env.NodePortAddresses, env.Reserved
	all := !reflect.DeepEqual(unmarked, *env) || !SameTrust(&c.env, env)
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
				return nodePorts && p.NodePort != 0 || p.Port.IsRange() && len(reserved) > 0 ||
					fromEtcd(s) && (reserved[p.Port.First()] || p.NodePort != 0 && reserved[p.NodePort])
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

func (c *Compiler) markInputChanges(w *work, in *Inputs) {
	mark(w.services, c.in.Services, in.Services, func(n Name) Name { return n })
	mark(w.services, c.in.Endpoints, in.Endpoints, func(e EndpointID) Name { return e.Service })
	mark(w.services, c.in.Resolved, in.Resolved, func(i LookupID) Name { return i.Service })
	mark(w.services, c.in.Overrides, in.Overrides, func(t Target) Name { return t.Service })
	mark(w.services, c.in.Health, in.Health, func(t Target) Name { return t.Service })
	mark(w.services, c.in.Agents, in.Agents, func(t Target) Name { return t.Service })
	mark(w.services, c.in.Ejected, in.Ejected, func(t Target) Name { return t.Service })
	mark(w.keys, c.in.Drains, in.Drains, func(d BackendKey) Key { return d.Frontend })
	mark(w.keys, c.in.Ramps, in.Ramps, func(d BackendKey) Key { return d.Frontend })
	mark(w.addresses, c.in.DrainingVIPs, in.DrainingVIPs, func(a netip.Addr) netip.Addr { return a })
	mark(w.keys, c.in.Holders, in.Holders, func(k Key) Key { return k })
	mark(w.vipStates, c.in.Withdrawals, in.Withdrawals, func(a netip.Addr) netip.Addr { return a })
	c.markPolicyChanges(w, in)
}

func mark[K snap.Ordered[K], V comparable, M comparable](marks map[M]bool, before, after snap.Map[K, V], keyOf func(K) M) {
	for k := range snap.Diff(before, after) {
		marks[keyOf(k)] = true
	}
}

// recompile compiles a service, and marks the keys of its old and new claims.
func (c *Compiler) recompile(name Name, w *work) {
	old := c.compiled[name]
	if old != nil {
		for _, f := range old.claims {
			w.keys[f.Key] = true
			c.claimants.remove(f.Key, old.service)
		}
		c.markSharers(w, old)
		for _, a := range old.direct {
			w.vipStates[a] = true
		}
		delete(c.compiled, name)
	}
	w.problems[name] = true
	c.index.Update(name, &c.in)
	s, ok := c.in.Services.Get(name)
	if !ok {
		return
	}
	u := compileService(&c.env, s, &c.in)
	c.compiled[name] = u
	c.markSharers(w, u)
	for _, a := range u.direct {
		w.vipStates[a] = true
	}
	for _, f := range u.claims {
		w.keys[f.Key] = true
		c.claimants.add(f.Key, s)
	}
}

// resolveAll resolves the marked keys, and the ranges that depend on them. A range depends on the
// ranges that overlap it and on the narrower frontends inside it, so the narrowest keys come first.
func (c *Compiler) resolveAll(w *work) {
	ranges := map[Key]bool{}
	for key := range w.keys {
		if key.Port.IsRange() {
			ranges[key] = true
			c.markOverlapping(ranges, key)
			continue
		}
		served := c.out.Frontends.Has(key)
		if c.resolve(key, w); served != c.out.Frontends.Has(key) {
			c.markOverlapping(ranges, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(ranges), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Port.Len(), b.Port.Len()), a.Compare(b))
	}) {
		c.resolve(key, w)
	}
}

// markOverlapping adds to ranges each claimed range that shares a port with key.
func (c *Compiler) markOverlapping(ranges map[Key]bool, key Key) {
	for _, r := range c.claimants.ranges[key.Addr] {
		if r.Proto == key.Proto && r.Port.Overlaps(key.Port) {
			ranges[r] = true
		}
	}
}

// resolve decides which service gets key, and publishes its frontend.
func (c *Compiler) resolve(key Key, w *work) {
	claimants := c.claimants.byKey[key]
	for _, s := range claimants {
		w.problems[s.Name] = true
	}
	c.out.Contested = c.out.Contested.Delete(key)
	w.vipStates[key.Addr] = true
	old := c.out.Frontends.At(key)
	if old != nil {
		w.problems[old.Service] = true
	}
	if len(claimants) == 0 {
		c.publish(key, old, nil, w)
		return
	}
	s, contested := c.claimants.winner(key, &c.in)
	if contested {
		c.out.Contested = c.out.Contested.Set(key, s.Name)
	}
	if !slices.Contains(claimants, s) {
		c.publish(key, old, nil, w)
		return
	}
	u := c.compiled[s.Name]
	i, _ := slices.BinarySearchFunc(u.claims, key, func(f *Frontend, k Key) int { return f.Key.Compare(k) })
	f := withForeign(withMemory(u.claims[i], &c.in), u, c.neighbours(key.Addr)).withOpen(c.out.Frontends)
	if old != nil && !f.NodePort {
		f = f.withWithdrawn(old.Withdrawn) // until updateVIPState decides
	}
	if !f.Equal(old) {
		c.publish(key, old, f, w)
	}
}

// publish replaces the frontend old at key with next, and updates the number of frontends on the
// VIP. Either frontend may be nil.
func (c *Compiler) publish(key Key, old, next *Frontend, w *work) {
	if next == nil {
		c.out.Frontends = c.out.Frontends.Delete(key)
	} else {
		c.out.Frontends = c.out.Frontends.Set(key, next)
	}
	kept := old != nil && next != nil && old.NodePort == next.NodePort
	if !kept || old.Service != next.Service {
		for _, name := range c.index.At(key.Addr) { // the service may have an endpoint at the VIP
			w.problems[name] = true
		}
	}
	if kept {
		return
	}
	if old != nil && !old.NodePort {
		c.addFrontends(old.Addr, -1)
	}
	if next != nil && !next.NodePort {
		c.addFrontends(next.Addr, 1)
	}
}

// addFrontends adds delta to the number of frontends on a VIP. It deletes a VIP without frontends,
// unless the VIP is draining.
func (c *Compiler) addFrontends(a netip.Addr, delta int) {
	n := c.out.Addresses.At(a) + delta
	if n == 0 && !c.in.DrainingVIPs.Has(a) {
		c.out.Addresses = c.out.Addresses.Delete(a)
		return
	}
	c.out.Addresses = c.out.Addresses.Set(a, n)
}

func (c *Compiler) updateProblems(name Name) {
	u := c.compiled[name]
	if u == nil {
		c.out.Problems = c.out.Problems.Delete(name)
		return
	}
	winnerOf := func(k Key) *Service { s, _ := c.claimants.winner(k, &c.in); return s }
	problems := slices.Concat(u.problems, u.endpointsAtVIPs(&c.env, c.out.Frontends), u.lostClaims(winnerOf))
	old := c.out.Problems.At(name)
	switch {
	case len(problems) == 0:
		c.out.Problems = c.out.Problems.Delete(name)
	case old == nil || !slices.Equal(*old, problems):
		c.out.Problems = c.out.Problems.Set(name, &problems)
	}
}
