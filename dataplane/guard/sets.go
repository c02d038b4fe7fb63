package guard

import (
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
)

// setDef is a set and what each frontend puts into it.
type setDef struct {
	name string
	kind ipset.Kind
	// early entries come in before the frontend that they are for is applied, and go after no applied one needs them:
	// they restrict, or say how a connection is treated for all of its life. Those of the others hold while both the
	// wanted frontend and the applied one ask for them: they come in after the frontend was applied, and go before
	// another is.
	early bool
	// optional: the guard does without it where the kernel lacks its kind.
	optional bool
	// ipvs: only the mode of the kernel's virtual servers has a use for it; direct: and only for direct frontends.
	ipvs, direct bool
	// native: it is for nf_tables alone; the form in iptables has rules instead.
	native bool
	// behind reports whether entries are endpoints behind a frontend.
	behind bool
	// passing: rules add the entries, which are gone soon after.
	passing *ipset.Passing
	// entries are those of one frontend; nil where frontends are not what the set holds.
	entries func(*balancer.Frontend) []ipset.Entry
}

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
	arrivedSet    = "arrived"    // where clients' packets came in
	clampsSet     = "clamps"     // the segment sizes that connections announce at most
	deadSet       = "dead"       // endpoints that clients must not reach by opening a connection again
	quietSet      = "quiet"      // endpoints that are alive and get no new connections
)

// arrivals are remembered from where a packet comes in until it goes out, which is a moment; ipsets know no shorter one
// than a second. What fits in are the clients of that second on a busy gateway, at 10 MB a family at most. When it is
// full new ones take the places of others, but for one in fifty, whose bucket is empty (e^-4): the kernel takes out
// nothing of another bucket. More entries a bucket would overflow the kernel's twelve.
func arrivals() *ipset.Passing { return &ipset.Passing{Seconds: 1, Buckets: 1 << 15, Max: 1 << 17} }

// setDefs are all sets, in the order in which entries are taken out: what sends packets to a set before that set.
// Entries are put in in the opposite order.
func setDefs() []setDef {
	return []setDef{
		{name: arrivedSet, kind: ipset.HashNetIface, early: true, optional: true, ipvs: true, passing: arrivals()},
		{name: directSet, kind: ipset.HashIPPort, early: true, ipvs: true, direct: true, entries: when(isDirect)},
		{name: tunnelsSet, kind: ipset.HashIP, early: true, ipvs: true, direct: true, entries: tunnels},
		{name: frontendsSet, kind: ipset.HashIPPort, early: true, entries: when(isFrontend)},
		{name: specialSet, kind: ipset.HashIPPort, early: true, entries: when(isSpecial)},
		{name: restrictedSet, kind: ipset.HashIPPort, early: true, entries: when(isRestricted)},
		{name: silentSet, kind: ipset.HashIPPort, early: true, entries: when(isSilent)},
		{name: masqueradeSet, kind: ipset.HashIPPort, early: true, entries: when(isMasqueraded)},
		{name: neverSet, kind: ipset.HashIPPort, early: true, entries: when(isUnchanged)},
		{name: allowedSet, kind: ipset.HashIPPortNet, early: true, optional: true, entries: allowed},
		{name: clampsSet, kind: ipset.HashIPPort, early: true, native: true, entries: clamped},
		{name: roamingSet, kind: ipset.HashIPPort, early: true, entries: when(isRoaming)},
		{name: answersSet, kind: ipset.HashIPPort, early: true, entries: answers},
		{name: heldSet, kind: ipset.HashIP, early: true},
		{name: pendingSet, kind: ipset.HashIP, early: true},
		{name: ownedSet, kind: ipset.HashIP, early: true},
		{name: servedSet, kind: ipset.HashIPPort, entries: when((*balancer.Frontend).Serves)},
		{name: rejectedSet, kind: ipset.HashIPPort, entries: when(isRejected)},
		{name: deadSet, native: true, behind: true, entries: behind(balancer.Backend.Dead)},
		{name: quietSet, native: true, behind: true, entries: behind(isQuiet)},
	}
}

// setName is the kernel's name of a set.
func setName(name string, family inet.Family) string {
	return "vipd-" + name + family.Digit()
}

// placeOf is where a frontend is.
func placeOf(k balancer.Key) ipset.Entry {
	return ipset.Entry{Addr: k.Addr, Port: k.Port, Proto: ipset.ProtocolOf(k.Proto)}
}

// when puts in the place of each frontend that meets the condition. Loopback ones are for the node alone, and no mode's NAT
// sees them.
func when(condition func(*balancer.Frontend) bool) func(*balancer.Frontend) []ipset.Entry {
	return func(f *balancer.Frontend) []ipset.Entry {
		if f.Addr.IsLoopback() || !condition(f) {
			return nil
		}
		return []ipset.Entry{placeOf(f.Key)}
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

func isRoaming(f *balancer.Frontend) bool { return f.Roams }

// answers are the places that connections which come from other hosts are answered from.
func answers(f *balancer.Frontend) (entries []ipset.Entry) {
	if !f.Roams {
		return nil
	}
	for _, b := range f.Backends {
		if e := (ipset.Entry{Addr: b.Addr.Addr(), Port: b.Addr.Port(), Proto: ipset.ProtocolOf(f.Proto)}); e.Addr.Is4() == f.Addr.Is4() {
			entries = append(entries, e)
		}
	}
	return entries
}

// tunnels are the endpoints that packets reach in packets to the endpoint.
func tunnels(f *balancer.Frontend) []ipset.Entry {
	if f.Forward != balancer.TunnelForward {
		return nil
	}
	var entries []ipset.Entry
	for _, b := range f.Backends {
		if e := (ipset.Entry{Addr: b.Addr.Addr()}); e.Addr.Is4() == f.Addr.Is4() && (len(entries) == 0 || entries[len(entries)-1] != e) {
			entries = append(entries, e) // backends are sorted by address
		}
	}
	return entries
}

// allowed are those who may. A network of all addresses takes two entries, for the kernel can't hold /0.
func allowed(f *balancer.Frontend) []ipset.Entry {
	if f.Addr.IsLoopback() {
		return nil
	}
	var entries []ipset.Entry
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
func clamped(f *balancer.Frontend) []ipset.Entry {
	if f.MSS == 0 || f.Proto != balancer.TCP || isDirect(f) || f.Addr.IsLoopback() {
		return nil
	}
	e := placeOf(f.Key)
	e.MSS = uint16(f.MSS)
	return []ipset.Entry{e}
}
