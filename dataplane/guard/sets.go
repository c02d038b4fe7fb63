package guard

import (
	"net/netip"

	"vipd/balancer"
)

// setDef describes a set and the entries that each frontend adds to it.
type setDef struct {
	name string
	key  setKey
	// early reports whether entries are added before their frontend is applied, and removed when no
	// applied frontend needs them. Such entries restrict connections, or determine how a connection
	// is treated until it ends. The entries of other sets require a frontend that is both desired
	// and applied. They are added after the frontend is applied, and removed before another
	// frontend is applied.
	early bool
	// entries returns the entries of a frontend. It is nil if the set's entries do not depend on
	// frontends.
	entries func(*balancer.Frontend) []setEntry
}

// setKey is the key of a set's elements.
type setKey string

const (
	byPlace   setKey = "place"   // address, protocol and port of a frontend
	byAddress setKey = "address" // an address
	byClients setKey = "clients" // a place, with a network of clients
	byMSS     setKey = "mss"     // a place, with its maximum segment size
	behind    setKey = "behind"  // address and port of a frontend, and one of its endpoints; see endpointsThat
)

// These are the names of the sets.
const (
	frontendsSet  = "frontends"  // frontends without special treatment
	specialSet    = "special"    // all other frontends
	restrictedSet = "restricted" // frontends with source ranges
	silentSet     = "silent"     // frontends that drop clients
	masqueradeSet = "masquerade" // frontends whose connections are always masqueraded
	neverSet      = "never"      // frontends whose connections are never masqueraded
	allowedSet    = "allowed"    // clients that may use restricted frontends
	heldSet       = "held"       // addresses that vipd added
	pendingSet    = "pending"    // held addresses without an applied frontend
	ownedSet      = "owned"      // addresses that another host may have
	roamingSet    = "roaming"    // frontends whose connections may move here from other hosts
	answersSet    = "answers"    // endpoints of roaming frontends
	servedSet     = "served"     // applied frontends that serve clients
	rejectedSet   = "rejected"   // frontends that refuse clients
	directSet     = "direct"     // frontends whose packets are forwarded unchanged, and answered directly
	tunnelsSet    = "tunnels"    // endpoints of tunnels
	clampsSet     = "clamps"     // maximum segment sizes of frontends
	deadSet       = "dead"       // dead endpoints, which a client must not reach by reusing a port
	quietSet      = "quiet"      // live endpoints without new connections
)

// setDefs returns the definitions of all sets.
func setDefs() []setDef {
	return []setDef{
		{directSet, byPlace, true, placeIf(isDirect)},
		{tunnelsSet, byAddress, true, tunnels},
		{frontendsSet, byPlace, true, placeIf(isFrontend)},
		{specialSet, byPlace, true, placeIf(isSpecial)},
		{restrictedSet, byPlace, true, placeIf(isRestricted)},
		{silentSet, byPlace, true, placeIf(isSilent)},
		{masqueradeSet, byPlace, true, placeIf(isMasqueraded)},
		{neverSet, byPlace, true, placeIf(isUnchanged)},
		{allowedSet, byClients, true, allowed},
		{clampsSet, byMSS, true, clamped},
		{roamingSet, byPlace, true, placeIf(isRoaming)},
		{answersSet, byPlace, true, answers},
		{heldSet, byAddress, true, nil},
		{pendingSet, byAddress, true, nil},
		{ownedSet, byAddress, true, nil},
		{servedSet, byPlace, false, placeIf((*balancer.Frontend).Serves)},
		{rejectedSet, byPlace, false, placeIf(isRejected)},
		{deadSet, behind, false, endpointsThat(balancer.Backend.Dead)},
		{quietSet, behind, false, endpointsThat(isQuiet)},
	}
}

// placeIf returns a function that returns a frontend's place if the frontend satisfies the
// condition. That function omits withdrawn frontends. It also omits loopback frontends, which only
// the node can use and no mode translates.
func placeIf(condition func(*balancer.Frontend) bool) func(*balancer.Frontend) []setEntry {
	return func(f *balancer.Frontend) []setEntry {
		if f.Addr.IsLoopback() || f.Withdrawn || !condition(f) {
			return nil
		}
		return []setEntry{placeOf(f.Key)}
	}
}

func isFrontend(*balancer.Frontend) bool { return true }

// isSpecial reports whether any of the special sets contains f.
func isSpecial(f *balancer.Frontend) bool {
	return isRestricted(f) || isLimited(f) || isSilent(f) || isMasqueraded(f) || isUnchanged(f)
}

func isRestricted(f *balancer.Frontend) bool { return len(f.Sources) > 0 }

// isMasqueraded reports whether connections to f are always masqueraded.
func isMasqueraded(f *balancer.Frontend) bool {
	return !isUnchanged(f) && (f.SNAT == balancer.AlwaysSNAT || f.NodePort)
}

// isUnchanged reports whether endpoints always see the client's address. With AutoSNAT, the guard
// still masquerades the host's own connections to a direct frontend.
func isUnchanged(f *balancer.Frontend) bool {
	return f.SNAT == balancer.NeverSNAT || isDirect(f) && f.SNAT != balancer.AutoSNAT
}

func isDirect(f *balancer.Frontend) bool { return f.Forward.Direct() }

func isRejected(f *balancer.Frontend) bool {
	return f.NoEndpoints == balancer.RejectClients && !f.Serves()
}

func isSilent(f *balancer.Frontend) bool { return f.NoEndpoints == balancer.DropClients && !f.Serves() }

func isRoaming(f *balancer.Frontend) bool { return f.Movable }

// answers returns the endpoints of a movable frontend. Connections to it may move here from other
// hosts.
func answers(f *balancer.Frontend) (entries []setEntry) {
	if !f.Movable {
		return nil
	}
	for _, b := range f.Backends {
		if e := (setEntry{Addr: b.Addr.Addr(), Port: balancer.PortRange(b.Addr.Port()), Proto: f.Proto.Number()}); e.Addr.Is4() == f.Addr.Is4() {
			entries = append(entries, e)
		}
	}
	return entries
}

// tunnels returns the endpoints that receive encapsulated packets.
func tunnels(f *balancer.Frontend) []setEntry {
	if f.Forward != balancer.TunnelForward {
		return nil
	}
	var entries []setEntry
	for _, b := range f.Backends {
		if e := (setEntry{Addr: b.Addr.Addr()}); e.Addr.Is4() == f.Addr.Is4() && (len(entries) == 0 || entries[len(entries)-1] != e) {
			entries = append(entries, e) // backends are sorted by address
		}
	}
	return entries
}

// allowed returns the client networks that may use a restricted frontend. A network that contains
// all addresses needs two entries, because the kernel does not support /0 in sets.
func allowed(f *balancer.Frontend) []setEntry {
	if f.Addr.IsLoopback() || f.Withdrawn {
		return nil
	}
	var entries []setEntry
	add := func(n netip.Prefix) {
		e := placeOf(f.Key)
		e.Net = n.Masked()
		entries = append(entries, e)
	}
	for _, n := range f.Sources {
		switch {
		case n.Addr().Is4() != f.Addr.Is4():
		case n.Bits() == 0:
			half := netip.PrefixFrom(n.Masked().Addr(), 1)
			add(half)
			add(upperHalf(half))
		default:
			add(n)
		}
	}
	return entries
}

func upperHalf(n netip.Prefix) netip.Prefix {
	b := n.Addr().AsSlice()
	b[0] = 0x80
	a, _ := netip.AddrFromSlice(b) // the length is valid
	return netip.PrefixFrom(a, 1)
}

func clamped(f *balancer.Frontend) []setEntry {
	if f.MSS == 0 || f.Proto != balancer.TCP || isDirect(f) || f.Addr.IsLoopback() || f.Withdrawn {
		return nil
	}
	e := placeOf(f.Key)
	e.MSS = uint16(f.MSS)
	return []setEntry{e}
}
