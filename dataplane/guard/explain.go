package guard

import (
	"vipd/balancer"
	"vipd/dataplane"
)

// Path is how a connection passes this node.
type Path struct {
	// Local: a program of this node opens it.
	Local bool
	// In and Out are the indices of the interfaces by which it comes in and goes out to the endpoint; 0 means not known.
	In, Out int
	// Stays: the endpoint is on this node.
	Stays bool
}

// oneArm reports whether the endpoint's reply would miss this node: the client is behind the same interface.
func (p Path) oneArm() bool { return !p.Local && p.In != 0 && p.In == p.Out }

// SourceOf reports whether the endpoint of a connection to f sees an address of this node as its source, with the reason, and
// whether its reply misses this node. It is the chain "source" in words, see layout.chains.
func SourceOf(f *balancer.Frontend, m dataplane.Needs, p Path) (node bool, why string, lost bool) {
	switch {
	case !m.Forward:
		return true, "vipd opens the connection to the endpoint itself", false
	case isDirect(f):
		return false, "forward is " + string(f.Forward) + ": the endpoint answers the client directly", false
	case p.Stays:
		return false, "the endpoint is on this node", false
	case isUnchanged(f) && p.oneArm():
		return false, "snat is never, and the client is behind the same interface as the endpoint: the reply goes past this node", true
	case isUnchanged(f):
		return p.Local, "snat is never", false
	case p.Local:
		return true, "the client is this node", false
	case p.oneArm():
		return true, "the client is behind the same interface as the endpoint: the reply would miss this node", false
	case f.SNAT == balancer.AlwaysSNAT:
		return true, "snat is always", false
	case f.NodePort:
		return true, "it is a node port: the reply has to come back through this node", false
	}
	return false, "the reply comes back through this node, if this node is the endpoint's way to the client", false
}

// mustHold are the sets without whose entries a frontend is treated otherwise than it asks for.
func mustHold(def *setDef) bool { return def.name != frontendsSet && def.name != servedSet }
