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

// Node is the record that a live node publishes for the other nodes of the fleet.
type Node struct {
	// Addresses lists the node's own addresses, sorted. A host that adds one of them locally can't
	// reach the node.
	Addresses []netip.Addr `json:"addresses"`
	// AllowedEndpoints is the setting addresses.allowed_endpoints in the node's configuration.
	AllowedEndpoints []netip.Prefix `json:"allowed_endpoints,omitempty"`
}

// Equal reports whether the two records are equal.
func (n Node) Equal(other Node) bool {
	return slices.Equal(n.Addresses, other.Addresses) && slices.Equal(n.AllowedEndpoints, other.AllowedEndpoints)
}

// NodeAddresses maps the addresses of all nodes, except the node called except, to the nodes'
// names.
func NodeAddresses(nodes snap.Map[NodeName, *Node], except NodeName) snap.Map[netip.Addr, NodeName] {
	return UpdateNodeAddresses(snap.Map[netip.Addr, NodeName]{}, snap.Map[NodeName, *Node]{}, nodes, except)
}

// UpdateNodeAddresses returns NodeAddresses(after, except), given owners, which is
// NodeAddresses(before, except). If no node has changed, it costs nothing; otherwise it visits all
// nodes' addresses at most once.
func UpdateNodeAddresses(owners snap.Map[netip.Addr, NodeName], before, after snap.Map[NodeName, *Node], except NodeName) snap.Map[netip.Addr, NodeName] {
	var changed []netip.Addr // addresses of the changed nodes
	for name, c := range snap.Diff(before, after) {
		for _, n := range []*Node{c.Old, c.New} {
			if n != nil && name != except {
				changed = append(changed, n.Addresses...)
			}
		}
	}
	if len(changed) == 0 {
		return owners
	}
	next := map[netip.Addr]NodeName{}
	for _, a := range changed {
		next[a] = ""
	}
	for name, n := range after.All() {
		for _, a := range n.Addresses {
			if first, ok := next[a]; ok && first == "" && name != except {
				next[a] = name
			}
		}
	}
	for a, name := range next {
		switch {
		case name == "":
			owners = owners.Delete(a)
		case owners.At(a) != name:
			owners = owners.Set(a, name)
		}
	}
	return owners
}

// PublishedAddresses returns the addresses that a node publishes as its own: the addresses in
// Env.Local that neither another program nor vipd owner moves between hosts. An address that a
// service claims is also published, because another host that added the address would cut off the
// node. The addresses in sources, from which the node sends, are always published.
func PublishedAddresses(env *Env, in *Inputs, sources []netip.Addr) (own []netip.Addr) {
	moved := map[netip.Addr]bool{} // addresses that another program moves
	if env.ExternalVIPs {
		for _, s := range in.Services.All() {
			for _, vip := range s.Addresses() {
				moved[vip] = true
			}
		}
	}
	for _, a := range env.Local {
		owned := in.PolicyOf(a).Hold == HoldOne && !slices.Contains(env.LocalInSubnets, a)
		if slices.Contains(sources, a) || !moved[a] && !owned {
			own = append(own, a)
		}
	}
	return own
}
