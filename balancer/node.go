package balancer

import (
	"cmp"
	"net/netip"
	"slices"

	"vipd/balancer/snap"
)

// NodeName is the name of a node of the fleet.
type NodeName string

// Compare orders names alphabetically.
func (n NodeName) Compare(other NodeName) int { return cmp.Compare(n, other) }

// Node is what a live node of the fleet publishes for the others.
type Node struct {
	// Addresses are its own addresses, sorted. A host that made one of them local could no longer reach the node.
	Addresses []netip.Addr `json:"addresses"`
	// AllowedEndpoints is addresses.allowed_endpoints of its configuration.
	AllowedEndpoints []netip.Prefix `json:"allowed_endpoints,omitempty"`
}

// Equal reports whether both publish the same.
func (n Node) Equal(other Node) bool {
	return slices.Equal(n.Addresses, other.Addresses) && slices.Equal(n.AllowedEndpoints, other.AllowedEndpoints)
}

// AddressesOf returns the addresses of all nodes except this one, each with the name of its node.
func AddressesOf(nodes snap.Map[NodeName, *Node], except NodeName) snap.Map[netip.Addr, NodeName] {
	return UpdateAddresses(snap.Map[netip.Addr, NodeName]{}, snap.Map[NodeName, *Node]{}, nodes, except)
}

// UpdateAddresses returns AddressesOf(after, except). Of is what it returned for the nodes before. The cost grows with the nodes that
// differ, plus one pass over all addresses.
func UpdateAddresses(of snap.Map[netip.Addr, NodeName], before, after snap.Map[NodeName, *Node], except NodeName) snap.Map[netip.Addr, NodeName] {
	var changed []netip.Addr // of nodes that differ
	for name, c := range snap.Diff(before, after) {
		for _, n := range []*Node{c.Old, c.New} {
			if n != nil && name != except {
				changed = append(changed, n.Addresses...)
			}
		}
	}
	if len(changed) == 0 {
		return of
	}
	now := map[netip.Addr]NodeName{}
	for _, a := range changed {
		now[a] = ""
	}
	for name, n := range after.All() {
		for _, a := range n.Addresses {
			if first, ok := now[a]; ok && first == "" && name != except {
				now[a] = name
			}
		}
	}
	for a, name := range now {
		switch {
		case name == "":
			of = of.Delete(a)
		case of.At(a) != name:
			of = of.Set(a, name)
		}
	}
	return of
}

// PublishedAddresses returns the addresses that a node with this Env publishes as its own: those of Env.Local that no other
// program and no vipd owner moves. A claim alone never removes one, because the node would be cut off by the host that holds
// it next. Sources, from which the node sends, are always published.
func PublishedAddresses(env *Env, in *Inputs, sources []netip.Addr) (own []netip.Addr) {
	moved := map[netip.Addr]bool{} // by another program
	if env.LocalOnly {
		for _, s := range in.Services.All() {
			for _, vip := range s.Addresses() {
				moved[vip] = true
			}
		}
	}
	for _, a := range env.Local {
		owned := in.PolicyOf(a).Hold == HoldOne && !slices.Contains(env.Networked, a)
		if slices.Contains(sources, a) || !moved[a] && !owned {
			own = append(own, a)
		}
	}
	return own
}
