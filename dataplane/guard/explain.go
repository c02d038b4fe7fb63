package guard

import (
	"vipd/balancer"
	"vipd/dataplane"
)

// Path describes the path of a connection through this node.
type Path struct {
	// Local reports whether a program on this node opens the connection.
	Local bool
	// In and Out are the indices of the incoming interface and of the outgoing interface to the
	// endpoint. Zero means that the interface is unknown.
	In, Out int
	// EndpointLocal reports whether the endpoint is on this node.
	EndpointLocal bool
}

// oneArm reports whether the endpoint's reply would bypass this node because the client is on the
// same interface.
func (p Path) oneArm() bool { return !p.Local && p.In != 0 && p.In == p.Out }

// SourceOf reports whether the endpoint of a connection to f sees one of this node's addresses as
// the source, and why. lost reports whether its reply bypasses this node. It models the chain
// "source" (see layout.chains).
func SourceOf(f *balancer.Frontend, m dataplane.Needs, p Path) (node bool, why string, lost bool) {
	switch {
	case !m.Forward && f.Source == balancer.ClientSource && !f.Addr.IsLoopback():
		return clientSourceOf(p)
	case !m.Forward:
		return true, "vipd opens the connection to the endpoint itself", false
	case isDirect(f):
		return false, "forward is " + string(f.Forward) + ": the endpoint answers the client directly", false
	case p.EndpointLocal:
		return false, "the endpoint is on this node", false
	case isUnchanged(f) && p.oneArm():
		return false, "snat is never, and the client is behind the same interface as the endpoint: the reply bypasses this node", true
	case isUnchanged(f):
		return p.Local, "snat is never", false
	case p.Local:
		return true, "the client is this node", false
	case p.oneArm():
		return true, "the client is behind the same interface as the endpoint: the reply would bypass this node", false
	case f.SNAT == balancer.AlwaysSNAT:
		return true, "snat is always", false
	case f.NodePort:
		return true, "it is a node port: the reply must come back through this node", false
	}
	return false, "the reply comes back through this node only if the endpoint's route to the client leads through this node", false
}

// clientSourceOf is like SourceOf, but for a mode that opens connections from the client's address.
func clientSourceOf(p Path) (node bool, why string, lost bool) {
	switch {
	case p.EndpointLocal:
		return true, "the endpoint is on this node", false
	case p.Local:
		return true, "the client is this node", false
	case p.oneArm():
		return true, "the client is behind the same interface as the endpoint: the endpoint sees the client's address only if their networks differ. Replies must then come back through this node", false
	}
	return false, `source is "client": the reply comes back only if the endpoint routes to the client through this node`, false
}

// mustHold reports whether a frontend is handled incorrectly without its entries in the set.
func mustHold(def *setDef) bool { return def.name != frontendsSet && def.name != servedSet }
