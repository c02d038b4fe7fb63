package guard

import (
	"net/netip"

	"vipd/balancer"
)

// setDef is a set and what each frontend puts into it.
type setDef struct {
	name string
	key  setKey
	// early entries are added before the frontend that they are for is applied, and removed after no applied one needs them:
	// they restrict, or say how a connection is treated for all of its life. Those of the others hold while both the
	// wanted frontend and the applied one ask for them: they are added after the frontend was applied, and removed before
	// another is.
	early bool
	// entries are those of one frontend; nil if frontends are not what the set holds.
	entries func(*balancer.Frontend) []entry
}

// setKey is what the elements of a set consist of.
type setKey string

const (
	byPlace   setKey = "place"   // address, protocol and port of a frontend
	byAddress setKey = "address" // an address
	byClients setKey = "clients" // a place, with a network of clients
	byMSS     setKey = "mss"     // a place, with its maximum segment size
	behind    setKey = "behind"  // address and port of a frontend, with an endpoint behind it
)

// The names of the sets.
const (
	frontendsSet  = "frontends"  // those that ask for nothing but to be recognised
	specialSet    = "special"    // all others
	restrictedSet = "restricted" // with source ranges
	silentSet     = "silent"     // give no answer
	masqueradeSet = "masquerade" // always get the node's address for a source
	neverSet      = "never"      // never get it
	allowedSet    = "allowed"    // who may use restricted ones
	heldSet       = "held"       // addresses that vipd added
	pendingSet    = "pending"    // those of which no frontend was applied yet
	ownedSet      = "owned"      // addresses that another host may have
	roamingSet    = "roaming"    // whose connections come from other hosts
	answersSet    = "answers"    // endpoints of those
	servedSet     = "served"     // serve, and are applied: of others the mode lets go, and the host's own program may answer there
	rejectedSet   = "rejected"   // refuse
	directSet     = "direct"     // are passed on as they are, and answered past this node
	tunnelsSet    = "tunnels"    // endpoints at the ends of tunnels
	clampsSet     = "clamps"     // the segment sizes that connections announce at most
	deadSet       = "dead"       // endpoints that clients must not reach by opening a connection again
	quietSet      = "quiet"      // endpoints that are alive and get no new connections
)

// setDefs are all sets, in the order in which entries are deleted: what sends packets to a set before that set.
func setDefs() []setDef {
	return []setDef{
		{directSet, byPlace, true, when(isDirect)},
		{tunnelsSet, byAddress, true, tunnels},
		{frontendsSet, byPlace, true, when(isFrontend)},
		{specialSet, byPlace, true, when(isSpecial)},
		{restrictedSet, byPlace, true, when(isRestricted)},
		{silentSet, byPlace, true, when(isSilent)},
		{masqueradeSet, byPlace, true, when(isMasqueraded)},
		{neverSet, byPlace, true, when(isUnchanged)},
		{allowedSet, byClients, true, allowed},
		{clampsSet, byMSS, true, clamped},
		{roamingSet, byPlace, true, when(isRoaming)},
		{answersSet, byPlace, true, answers},
		{heldSet, byAddress, true, nil},
		{pendingSet, byAddress, true, nil},
		{ownedSet, byAddress, true, nil},
		{servedSet, byPlace, false, when((*balancer.Frontend).Serves)},
		{rejectedSet, byPlace, false, when(isRejected)},
		{deadSet, behind, false, endpointsThat(balancer.Backend.Dead)},
		{quietSet, behind, false, endpointsThat(isQuiet)},
	}
}

// when puts in the place of each frontend that meets the condition. Loopback ones are for the node alone, and no mode's NAT
// sees them.
func when(condition func(*balancer.Frontend) bool) func(*balancer.Frontend) []entry {
	return func(f *balancer.Frontend) []entry {
		if f.Addr.IsLoopback() || !condition(f) {
			return nil
		}
		return []entry{placeOf(f.Key)}
	}
}

func isFrontend(*balancer.Frontend) bool { return true }

// isSpecial reports whether any of the more particular sets has f.
func isSpecial(f *balancer.Frontend) bool {
	return isRestricted(f) || isSilent(f) || isMasqueraded(f) || isUnchanged(f)
}

func isRestricted(f *balancer.Frontend) bool { return len(f.Sources) > 0 }

// isMasqueraded reports whether replies to clients of f would miss this node, whatever way they come.
func isMasqueraded(f *balancer.Frontend) bool {
	return !isUnchanged(f) && (f.SNAT == balancer.AlwaysSNAT || f.NodePort)
}

// isUnchanged reports whether endpoints see the client's address in any case.
func isUnchanged(f *balancer.Frontend) bool { return f.SNAT == balancer.NeverSNAT || isDirect(f) }

// isDirect reports whether packets reach endpoints as they came, so that this node sees half of a connection.
func isDirect(f *balancer.Frontend) bool {
	return f.Forward == balancer.DRForward || f.Forward == balancer.TunnelForward
}

func isRejected(f *balancer.Frontend) bool {
	return f.NoEndpoints == balancer.RejectClients && !f.Serves()
}

func isSilent(f *balancer.Frontend) bool { return f.NoEndpoints == balancer.DropClients && !f.Serves() }

func isRoaming(f *balancer.Frontend) bool { return f.Movable }

// answers are the places that connections which come from other hosts are answered from.
func answers(f *balancer.Frontend) (entries []entry) {
	if !f.Movable {
		return nil
	}
	for _, b := range f.Backends {
		if e := (entry{Addr: b.Addr.Addr(), Port: b.Addr.Port(), Proto: f.Proto.Number()}); e.Addr.Is4() == f.Addr.Is4() {
			entries = append(entries, e)
		}
	}
	return entries
}

// tunnels are the endpoints that packets reach in packets to the endpoint.
func tunnels(f *balancer.Frontend) []entry {
	if f.Forward != balancer.TunnelForward {
		return nil
	}
	var entries []entry
	for _, b := range f.Backends {
		if e := (entry{Addr: b.Addr.Addr()}); e.Addr.Is4() == f.Addr.Is4() && (len(entries) == 0 || entries[len(entries)-1] != e) {
			entries = append(entries, e) // backends are sorted by address
		}
	}
	return entries
}

// allowed are those who may. A network of all addresses takes two entries, for the kernel can't hold /0.
func allowed(f *balancer.Frontend) []entry {
	if f.Addr.IsLoopback() {
		return nil
	}
	var entries []entry
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

// upperHalf returns the other /1.
func upperHalf(n netip.Prefix) netip.Prefix {
	b := n.Addr().AsSlice()
	b[0] = 0x80
	a, _ := netip.AddrFromSlice(b) // of the length of an address
	return netip.PrefixFrom(a, 1)
}

// clamped are the frontends with a bound of the segment size, and the bound.
func clamped(f *balancer.Frontend) []entry {
	if f.MSS == 0 || f.Proto != balancer.TCP || isDirect(f) || f.Addr.IsLoopback() {
		return nil
	}
	e := placeOf(f.Key)
	e.MSS = uint16(f.MSS)
	return []entry{e}
}
