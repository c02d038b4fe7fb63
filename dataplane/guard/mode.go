package guard

// Mode is what the host's side has to know of a mode. The zero value is one that ends connections itself, and needs
// nothing of the kernel but to be reached.
type Mode struct {
	// Forward: it forwards packets, so that it needs the kernel to, and replies to come back through this node.
	Forward bool
	// Marked: it marks the connections to its frontends by the rule Mark, so that the guard has to look for those only
	// that ask for more.
	Marked bool
	// IPVS: the kernel's virtual servers forward. They take packets where they would come in, so that filter FORWARD
	// sees replies alone, and they have sysctls of their own.
	IPVS bool
	// Translates: conntrack translates connections to it without Forward, as redirects of userspace mode do.
	Translates bool
}

// And returns what two modes need that serve at the same time, as they do while one takes over from the other.
func (m Mode) And(other Mode) Mode {
	return Mode{
		Forward: m.Forward || other.Forward, Marked: m.Marked && other.Marked, IPVS: m.IPVS || other.IPVS,
		Translates: m.Translates || other.Translates,
	}
}
