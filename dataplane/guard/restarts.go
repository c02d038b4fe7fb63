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

// A client that lost its connection abruptly, such as by a crash, may open a new connection from
// the same port. Its SYN or INIT belongs to an existing flow, so it is sent to the endpoint of the
// lost connection, possibly for days.
//
// If that endpoint is dead, rules drop the packet and add the client to a set. vipd reads the set,
// and makes conntrack forget the flow before the client retransmits, which happens after a second
// at the earliest. A SYN to a live endpoint passes, because the endpoint itself distinguishes a new
// connection from a late or forged SYN.
//
// Virtual servers end a connection at a SYN or INIT if its endpoint gets no new connections
// (ip_vs_in_hook, with expire_nodest_conn). This is right for dead endpoints. For live endpoints,
// rules convert the SYN to an ACK, which is also unexpected. The endpoint replies with the ACK that
// it would send to a SYN, and a client without such a connection resets it. INIT is dropped,
// because SCTP has no equivalent.

const (
	// restartMemory is how long a client remains in the set. Clients retransmit later than that.
	restartMemory = 900 * time.Millisecond
	// restartPause is the interval at which the set of clients is read.
	restartPause = 200 * time.Millisecond
	// maxRestarts is the maximum number of clients in the set. Other clients are added when they
	// retransmit.
	maxRestarts = 4096
)

// endpointsThat returns a function that lists the entries for a frontend's endpoints that satisfy
// condition. The entries' key has no protocol, because nft allows at most four fields in a set's
// key. If services of TCP and SCTP share an address and a port, and an endpoint of both satisfies
// the condition for one service, its entry also applies to the other service. A port range's key
// has the protocol instead of the endpoint's port, because that port depends on the port to which
// the client connects. So a range has no entry for an address that also has a backend for which
// condition is false, such as the backend with the new ports after target_port has changed.
func endpointsThat(condition func(balancer.Backend) bool) func(*balancer.Frontend) []setEntry {
	return func(f *balancer.Frontend) (entries []setEntry) {
		if f.Addr.IsLoopback() || f.Proto == balancer.UDP || isDirect(f) {
			return nil
		}
		for _, b := range f.Backends {
			e := setEntry{Addr: f.Addr, Port: f.Key.Port, To: b.Addr}
			if f.Key.Port.IsRange() {
				if slices.ContainsFunc(f.Backends, func(o balancer.Backend) bool { return o.Addr.Addr() == b.Addr.Addr() && !condition(o) }) {
					continue
				}
				e.Proto, e.To = f.Proto.Number(), netip.AddrPortFrom(b.Addr.Addr(), 0)
			}
			if condition(b) && e.To.Addr().Is4() == f.Addr.Is4() {
				entries = append(entries, e)
			}
		}
		return entries
	}
}

func isQuiet(b balancer.Backend) bool { return b.State != balancer.Active && !b.Dead() }

func newRestartsSet() *nft.Set {
	return &nft.Set{Name: "restarts", Key: nft.Concat{nft.Saddr, nft.Sport, nft.Daddr, nft.Dport}, Timed: true, Dynamic: true, Size: maxRestarts}
}

// restartChains returns the chains for a SYN or INIT of a known connection. All other packets
// return immediately.
func (l *layout) restartChains(with features) (all []chainRules) {
	rules := l.restartRules(with, nft.Concat{nft.Daddr, nft.Dport, nft.CtReplySaddr, nft.CtReplySport}, l.restarts)
	if with.ranges {
		ranged := l.inRange.restartRules(with, append(l.inRange.place[:3:3], nft.CtReplySaddr), l.restarts)
		all = append(all, chainRules{nft.Chain{Name: "ranges-restarts"}, append(ranged, rule(nft.ClearPriority{}))})
		for _, opens := range openings() {
			rules = append(rules, rule(append(opens, l.toRange(nft.Jump("ranges-restarts")).Do...)...))
		}
	}
	return append(all,
		chainRules{base("restarts", nft.Filter, nft.Prerouting, manglePriority), rules},
		chainRules{base("restarts-output", nft.Filter, nft.Output, manglePriority), rules},
	)
}

// openings returns the matches for a SYN and for an INIT that belong to a known connection.
func openings() [2][]nft.Stmt {
	known := nft.State(nft.Established)
	return [2][]nft.Stmt{
		{isTCP, nft.Flags{Mask: onlySYN, Value: nft.SYN}, known},
		{nft.Is{Field: nft.L4proto, Value: protocolSCTP}, nft.OpensSCTP{}, known},
	}
}

// restartRules returns the rules for dead endpoints and for quiet endpoints, which are alive but
// get no new connections. The parameter ends is the key of their sets, and clients is the set to
// which clients of dead endpoints are added.
func (l *layout) restartRules(with features, ends nft.Concat, clients *nft.Set) (rules []nft.Rule) {
	add := func(set string, forTCP, forSCTP []nft.Stmt) {
		for i, do := range [][]nft.Stmt{forTCP, forSCTP} {
			rules = append(rules, rule(slices.Concat(openings()[i], []nft.Stmt{nft.In{Of: ends, Set: l.sets[set]}}, do)...))
		}
	}
	if with.dead {
		note := []nft.Stmt{nft.Update{Map: clients, Key: clients.Key, Timeout: restartMemory}, nft.Drop}
		add(deadSet, note, note)
	}
	if with.quiet {
		add(quietSet, []nft.Stmt{nft.OnlyACK{}}, []nft.Stmt{nft.Drop})
	}
	return rules
}

// addrSize returns the size of a family's addresses in bytes.
func addrSize(of inet.Family) int {
	if of == inet.IPv6 {
		return 16
	}
	return 4
}

// endsOf decodes the key of an element with two addresses and ports.
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

// endpointOf decodes an element of a set that contains endpoints of frontends.
func endpointOf(e *nft.Elem, of inet.Family) (x setEntry) {
	if at, to, ok := endsOf(e.Key, of); ok {
		x = setEntry{Addr: at.Addr(), Port: balancer.PortRange(at.Port()), To: to}
	}
	return x
}
