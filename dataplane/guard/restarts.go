package guard

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// A client that lost its connection without a trace may open another from the same port. Its SYN or INIT belongs to a flow
// that is known, so it is led to the endpoint of the lost connection, for days if need be.
//
// If that endpoint is dead, rules drop the packet and note the client in a set. vipd reads the set, and makes conntrack
// forget the flow before the client sends again, after a second at the earliest. A SYN to an endpoint that is alive passes:
// the endpoint itself tells a SYN of a new connection from one that is late or forged.
//
// Virtual servers end a connection at a SYN or INIT if its endpoint gets no new connections (ip_vs_in_hook, with
// expire_nodest_conn). That is right for dead endpoints. To endpoints that are alive, rules make the SYN an ACK, which is
// out of place as well: the endpoint answers with the ACK that it owes to a SYN, and a client that has no such connection
// resets it. INIT is dropped, because nothing like it exists.

const (
	// restartMemory is how long a client is noted. It ends before the client sends again.
	restartMemory = 900 * time.Millisecond
	// restartPause is the time between two looks at the clients that are noted.
	restartPause = 200 * time.Millisecond
	// maxRestarts is the maximum number of clients that are noted at a time; others are noted when they send again.
	maxRestarts = 4096
)

// endpointsThat returns what lists the endpoints of a frontend that meet a condition. Their key has no protocol, because nft
// describes no set by more than four fields: if services of TCP and SCTP share an address and a port, an endpoint of both
// that meets the condition for one does so for both.
func endpointsThat(condition func(balancer.Backend) bool) func(*balancer.Frontend) []entry {
	return func(f *balancer.Frontend) (entries []entry) {
		if f.Addr.IsLoopback() || f.Proto == balancer.UDP || isDirect(f) {
			return nil
		}
		for _, b := range f.Backends {
			if condition(b) && b.Addr.Addr().Is4() == f.Addr.Is4() {
				entries = append(entries, entry{Addr: f.Addr, Port: f.Key.Port, To: b.Addr})
			}
		}
		return entries
	}
}

func isQuiet(b balancer.Backend) bool { return b.State != balancer.Active && !b.Dead() }

func newRestartsSet() *nft.Set {
	return &nft.Set{Name: "restarts", Key: nft.Concat{nft.Saddr, nft.Sport, nft.Daddr, nft.Dport}, Timed: true, Dynamic: true, Size: maxRestarts}
}

// restarted are the chains for packets that open a connection which is known. All other packets leave them at once.
func (l *layout) restarted(with concerns) []chainOf {
	ends := nft.Concat{nft.Daddr, nft.Dport, nft.CtReplySaddr, nft.CtReplySport}
	var rules []nft.Rule
	add := func(set string, forTCP, forSCTP []nft.Stmt) {
		known := []nft.Stmt{nft.State(nft.Established), nft.In{Of: ends, Set: l.sets[set]}}
		tcp := []nft.Stmt{isTCP, nft.Flags{Mask: onlySYN, Value: nft.SYN}}
		sctp := []nft.Stmt{nft.Is{Field: nft.L4proto, Value: protocolSCTP}, nft.OpensSCTP{}}
		rules = append(rules, rule(slices.Concat(tcp, known, forTCP)...), rule(slices.Concat(sctp, known, forSCTP)...))
	}
	if with.dead {
		note := []nft.Stmt{nft.Update{Map: l.restarts, Key: l.restarts.Key, Timeout: restartMemory}, nft.Drop}
		add(deadSet, note, note)
	}
	if with.quiet {
		add(quietSet, []nft.Stmt{nft.OnlyACK{}}, []nft.Stmt{nft.Drop})
	}
	return []chainOf{
		{base("restarts", nft.Filter, nft.Prerouting, manglePriority), rules},
		{base("restarts-output", nft.Filter, nft.Output, manglePriority), rules},
	}
}

// addrSize is the number of bytes of a family's addresses.
func addrSize(of inet.Family) int {
	if of == inet.IPv6 {
		return 16
	}
	return 4
}

// endsOf reads the key of an element that is two addresses with their ports.
func endsOf(key []byte, of inet.Family) (a, b netip.AddrPort, ok bool) {
	size := addrSize(of)
	if len(key) < 2*size+6 {
		return a, b, false
	}
	read := func(b []byte) netip.AddrPort {
		addr, _ := netip.AddrFromSlice(b[:size])
		return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[size:]))
	}
	return read(key), read(key[size+4:]), true
}

// endpointOf is entryOf for sets of endpoints behind frontends.
func endpointOf(e *nft.Elem, of inet.Family) (x entry) {
	if at, to, ok := endsOf(e.Key, of); ok {
		x = entry{Addr: at.Addr(), Port: at.Port(), To: to}
	}
	return x
}
