package dataplane

// Needs holds a mode's requirements for the host. The zero value describes a mode that terminates
// connections itself and needs only reachable addresses.
type Needs struct {
	// Forward reports whether the mode forwards packets. If so, IP forwarding must be enabled, and
	// replies must return through this node.
	Forward bool
	// Marked reports whether the mode marks connections to its frontends (host.Mark). If so, the
	// guard only has to recognize connections that need other marks.
	Marked bool
	// LocalIn reports whether the kernel handles packets on the input path, as virtual servers do.
	// Then only replies traverse the FORWARD chain, and virtual servers have their own sysctls.
	LocalIn bool
	// Translates reports whether conntrack translates connections even though the mode does not
	// forward packets, as redirects of userspace mode do.
	Translates bool
	// TranslatesAll reports whether every packet that opens a connection to a frontend is
	// translated. If so, an untranslated packet on the input path belongs to a flow that is older
	// than the frontend, and no program on this host may answer it.
	TranslatesAll bool
	// Resets reports whether connections exist only in conntrack. If so, a TCP packet without SYN
	// that is new to conntrack belongs to a connection that was ended or lost, so the connection is
	// reset. If the packet were translated again, it could reach its previous endpoint, and the
	// connection would continue.
	Resets bool
}

// And returns the combined needs of two modes that serve at the same time, as during a switch.
func (n Needs) And(other Needs) Needs {
	return Needs{
		Forward: n.Forward || other.Forward, Marked: n.Marked && other.Marked, LocalIn: n.LocalIn || other.LocalIn,
		Translates: n.Translates || other.Translates, TranslatesAll: n.TranslatesAll && other.TranslatesAll,
		Resets: n.Resets || other.Resets,
	}
}
