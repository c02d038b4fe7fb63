package dataplane

// Needs are a mode's requirements of the host. The zero value is a mode that ends connections
// itself and only has to be reached.
type Needs struct {
	// Forward reports whether the mode forwards packets: the kernel has to forward, and replies
	// have to return through this node.
	Forward bool
	// Marked reports whether the mode marks connections to its frontends (host.Mark), so the guard
	// searches only for those that need more.
	Marked bool
	// LocalIn reports whether the kernel handles packets on the input path, as virtual servers do.
	// Then filter FORWARD sees only replies, and virtual servers have their own sysctls.
	LocalIn bool
	// Translates reports whether conntrack translates connections without Forward, as redirects of
	// userspace mode do.
	Translates bool
	// TranslatesAll reports whether every packet that opens a connection to a frontend is
	// translated. An untranslated packet on the input path then belongs to a flow that is older
	// than the frontend, and nothing on this host may answer it.
	TranslatesAll bool
	// Resets reports whether only conntrack knows the connections. A TCP packet without SYN that is
	// new to conntrack then belongs to a connection that was ended or lost, and is reset. If it
	// were translated again, it could reach its former endpoint, and the connection would continue.
	Resets bool
}

// And returns the needs of two modes that serve at the same time, as during a switch.
func (n Needs) And(other Needs) Needs {
	return Needs{
		Forward: n.Forward || other.Forward, Marked: n.Marked && other.Marked, LocalIn: n.LocalIn || other.LocalIn,
		Translates: n.Translates || other.Translates, TranslatesAll: n.TranslatesAll && other.TranslatesAll,
		Resets: n.Resets || other.Resets,
	}
}
