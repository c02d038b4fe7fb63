package balancer

import (
	"net/netip"
	"slices"

	"vipd/balancer/snap"
)

// AddressIndex finds services by the addresses of their VIPs and endpoints. The zero value is
// empty. Only one goroutine may use it.
type AddressIndex struct {
	services map[netip.Addr][]Name // unsorted
	named    map[Name][]netip.Addr // sorted
}

// At returns the services with a VIP or an endpoint at the address a.
func (x *AddressIndex) At(a netip.Addr) []Name { return x.services[a] }

// Update sets a service's entry to the addresses of its VIPs and endpoints in the inputs in. If the
// inputs do not contain the service, Update deletes the entry.
func (x *AddressIndex) Update(name Name, in *Inputs) {
	if x.services == nil {
		x.services, x.named = map[netip.Addr][]Name{}, map[Name][]netip.Addr{}
	}
	var now []netip.Addr
	if s, ok := in.Services.Get(name); ok {
		now = slices.Clone(s.Addresses())
		for _, e := range EndpointsOf(s, in) {
			now = append(now, e.Address)
		}
		slices.SortFunc(now, netip.Addr.Compare)
		now = slices.Compact(now)
	}
	before := x.named[name]
	if slices.Equal(before, now) {
		return
	}
	for a := range difference(before, now) {
		x.services[a] = slices.DeleteFunc(x.services[a], func(n Name) bool { return n == name })
		if len(x.services[a]) == 0 {
			delete(x.services, a)
		}
	}
	for a := range difference(now, before) {
		x.services[a] = append(x.services[a], name)
	}
	if x.named[name] = now; len(now) == 0 {
		delete(x.named, name)
	}
}

// ChangedAddresses returns the addresses that belong to different nodes in two Envs, and the
// addresses that only one of the Envs reserves. Only services that use a returned address need to
// be recompiled. The cost grows with the number of differences and the number of this node's
// addresses, but not with the number of other nodes.
func ChangedAddresses(before, after *Env) (changed []netip.Addr) {
	for a := range snap.Diff(before.Nodes, after.Nodes) {
		changed = append(changed, a)
	}
	for _, lists := range [2][2]*Env{{before, after}, {after, before}} {
		for a := range difference(lists[0].Local, lists[1].Local) {
			changed = append(changed, a)
		}
	}
	for _, r := range changedReserved(before, after) {
		if r.Addr.IsValid() {
			changed = append(changed, r.Addr)
		}
	}
	return changed
}

func changedReserved(before, after *Env) (changed []Reserved) {
	if slices.Equal(before.Reserved, after.Reserved) {
		return nil
	}
	for _, lists := range [2][2][]Reserved{{before.Reserved, after.Reserved}, {after.Reserved, before.Reserved}} {
		for _, r := range lists[0] {
			if !slices.Contains(lists[1], r) {
				changed = append(changed, r)
			}
		}
	}
	return changed
}

// SameTrust reports whether two Envs trust the same endpoints. It ignores endpoints at the
// addresses that [ChangedAddresses] returns.
func SameTrust(a, b *Env) bool {
	return slices.Equal(a.Allowed, b.Allowed) && slices.Equal(a.AllowedEndpoints, b.AllowedEndpoints) &&
		!slices.ContainsFunc(changedReserved(a, b), func(r Reserved) bool { return r.Etcd && r.Port != 0 })
}

// difference yields the addresses of the sorted list a that are missing from the sorted list b.
func difference(a, b []netip.Addr) func(yield func(netip.Addr) bool) {
	return func(yield func(netip.Addr) bool) {
		for _, x := range a {
			for len(b) > 0 && b[0].Less(x) {
				b = b[1:]
			}
			if (len(b) == 0 || b[0] != x) && !yield(x) {
				return
			}
		}
	}
}
