package dataplane

// Needs are what a mode needs of the host around it. The zero value is those of one that ends connections itself, and needs
// nothing of the kernel but to be reached.
type Needs struct {
	// Forward: it forwards packets, so that it needs the kernel to, and replies to come back through this node.
	Forward bool
	// Marked: it marks the connections to its frontends (host.Mark), so that the guard has to look for those only
	// that ask for more.
	Marked bool
	// LocalIn: the kernel takes packets where they would come in, as virtual servers do, so that filter FORWARD
	// sees replies alone, and they have their own sysctls.
	LocalIn bool
	// Translates: conntrack translates connections to it without Forward, as redirects of userspace mode do.
	Translates bool
	// TranslatesAll reports whether every packet that opens a connection to a frontend is translated. An untranslated one on its
	// way in belongs to a flow that is older than the frontend: nothing on this host may answer it.
	TranslatesAll bool
	// Resets: conntrack alone knows the connections to it. A TCP packet without SYN that is new to conntrack belongs to one that
	// was ended or lost, and is reset: translated anew, it could reach the endpoint that it had, and the connection would go on.
	Resets bool
}

// And returns what two modes need that serve at the same time, as they do while one takes over from the other.
func (n Needs) And(other Needs) Needs {
	return Needs{
		Forward: n.Forward || other.Forward, Marked: n.Marked && other.Marked, LocalIn: n.LocalIn || other.LocalIn,
		Translates: n.Translates || other.Translates, TranslatesAll: n.TranslatesAll && other.TranslatesAll,
		Resets: n.Resets || other.Resets,
	}
}
