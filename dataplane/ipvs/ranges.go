package ipvs

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipvsnl"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/portmap"
)

// marksTable names the table with the marks of port ranges. Each address family has its own.
const marksTable = "vipd-ipvs-ranges"

// These are the priorities of the chains that set and clear marks. Setting a mark immediately
// precedes IPVS (98 in input, -98 in output), and clearing it precedes everything else, so other
// programs' rules never see the marks.
const (
	inputMarkPriority  = 97
	outputMarkPriority = -99
	clearMarkPriority  = -401
)

// clearMarks is the name of the chain for packets that IPVS sends to endpoints.
const clearMarks = "forwarded"

// rangeMarks describes a table that marks packets to port ranges with the marks of their virtual
// servers. IPVS compares whole marks, so vipd's marks replace other programs' marks.
func rangeMarks() portmap.Kind {
	chain := func(name string, at nft.Point, priority int32) nft.Chain {
		return nft.Chain{Name: name, Hook: &nft.Hook{Type: nft.Filter, Point: at, Priority: priority}}
	}
	return portmap.Kind{
		Name: marksTable, Data: nft.Mark,
		Chains: []nft.Chain{chain("input", nft.Input, inputMarkPriority), chain("output", nft.Output, outputMarkPriority), chain(clearMarks, nft.Output, clearMarkPriority)},
		Rules: func(chain string, mark nft.Lookup) []nft.Rule {
			if chain != clearMarks { // an answer to a program on this host may arrive at a port of a range
				return []nft.Rule{{Do: []nft.Stmt{nft.FromClient{}, nft.SetField{Field: nft.Mark, To: mark}}}}
			}
			mark.Key = nft.Concat{nft.CtDaddr, nft.L4proto, nft.CtDport}
			return []nft.Rule{{Do: []nft.Stmt{nft.SetField{Field: nft.Mark, To: mark}, nft.ClearBits{Field: nft.Mark, Bits: ^uint32(0)}}}}
		},
	}
}

// marker sets the marks of packets to port ranges in an address family.
type marker interface {
	// Set replaces the marks.
	Set(ctx context.Context, marks map[balancer.Key]uint32) error
	// Observe and Intact describe a difference between the kernel's marks and the marks that were
	// set, or return "". After Observe has found a difference, Set writes all marks.
	Observe() (damage string, err error)
	Intact() (damage string, err error)
	// Remove removes the marks.
	Remove() error
	// Leave closes the connection to the kernel.
	Leave()
}

// markRangesLocked marks the packets to open ports of ranges, so they reach their virtual servers.
// After a start, it changes a family's marks only when all wanted frontends of the family are
// known, because an earlier process's marks are still in place.
func (d *Dataplane) markRangesLocked(ctx context.Context) error {
	unknown := map[inet.Family]bool{}
	for k, s := range d.ranges {
		if s.exists && !s.known {
			unknown[inet.Of(k.Addr)] = true
		}
	}
	marks := openMarks(maps.Values(d.ranges))
	var failed error
	for family, m := range d.marks {
		if unknown[family] {
			continue
		}
		own := maps.Clone(marks)
		maps.DeleteFunc(own, func(k balancer.Key, _ uint32) bool { return inet.Of(k.Addr) != family })
		failed = errors.Join(failed, m.Set(ctx, own))
	}
	return failed
}

// openMarks returns the marks of the ports that servers serve. While narrower frontends are added
// or removed, several ranges may have the same port open. Then the narrowest range gets the port.
func openMarks(servers func(func(*server) bool)) map[balancer.Key]uint32 {
	byWidth := func(s, t *server) int {
		return cmp.Or(cmp.Compare(s.key.Port.Len(), t.key.Port.Len()), s.key.Compare(t.key))
	}
	marks, used := map[balancer.Key]uint32{}, map[place][]balancer.PortRange{}
	for _, s := range slices.SortedFunc(servers, byWidth) {
		if !s.exists || s.front == nil || s.front.Withdrawn {
			continue
		}
		at := placeOf(s.key)
		for _, part := range s.front.Open {
			left := []balancer.PortRange{part}
			for _, taken := range used[at] {
				left = balancer.Without(left, taken)
			}
			for _, ports := range left {
				marks[balancer.Key{Addr: s.key.Addr, Port: ports, Proto: s.key.Proto}] = ipvsnl.Mark(s.key)
			}
		}
		used[at] = append(used[at], s.front.Open...)
	}
	return marks
}

// observeMarksLocked describes a difference between the kernel's marks and the wanted marks, or
// returns "". It removes an earlier process's marks that no virtual server needs.
func (d *Dataplane) observeMarksLocked(ctx context.Context) (damage string, err error) {
	for _, m := range d.marks {
		found, failed := m.Observe()
		damage, err = cmp.Or(damage, found), errors.Join(err, failed)
	}
	if len(d.ranges) > 0 {
		return damage, err
	}
	return "", errors.Join(err, d.markRangesLocked(ctx))
}

// Mark returns the firewall mark of the virtual server for a port range.
func Mark(k balancer.Key) uint32 { return ipvsnl.Mark(k) }

// intactMarks is a cheap variant of observeMarksLocked.
func (d *Dataplane) intactMarks() (damage string, err error) {
	for _, m := range d.marks {
		found, failed := m.Intact()
		damage, err = cmp.Or(damage, found), errors.Join(err, failed)
	}
	return damage, err
}

func (d *Dataplane) closeMarks(keep bool) (err error) {
	for _, m := range d.marks {
		if !keep {
			err = errors.Join(err, m.Remove())
		}
		m.Leave()
	}
	return err
}

// place is an address and a protocol.
type place struct {
	addr  netip.Addr
	proto balancer.Protocol
}

func placeOf(k balancer.Key) place { return place{k.Addr, k.Proto} }

// index finds the virtual servers of connections. single holds the keys with one port. ranges holds
// the port ranges of each place, the narrowest first.
type index struct {
	single map[balancer.Key]bool
	ranges map[place][]balancer.Key
}

// indexLocked returns an index of vipd's virtual servers that satisfy a condition.
func (d *Dataplane) indexLocked(condition func(*server) bool) index {
	x := index{map[balancer.Key]bool{}, map[place][]balancer.Key{}}
	for k, s := range d.servers {
		switch at := placeOf(k); {
		case !condition(s):
		case k.Port.IsRange():
			x.ranges[at] = append(x.ranges[at], k)
		default:
			x.single[k] = true
		}
	}
	for _, all := range x.ranges {
		slices.SortFunc(all, func(a, b balancer.Key) int { return cmp.Compare(a.Port.Len(), b.Port.Len()) })
	}
	return x
}

func (x *index) find(at balancer.Key) (k balancer.Key, ok bool) {
	if x.single[at] {
		return at, true
	}
	all := x.ranges[placeOf(at)]
	i := slices.IndexFunc(all, func(k balancer.Key) bool { return k.Port.Contains(at.Port.First()) })
	if i < 0 {
		return at, false
	}
	return all[i], true
}

// destinationOf returns the address of the virtual server's destination that serves connections
// with this endpoint.
func destinationOf(k balancer.Key, endpoint netip.AddrPort) netip.AddrPort {
	if k.Port.IsRange() {
		return netip.AddrPortFrom(endpoint.Addr(), k.Port.First())
	}
	return endpoint
}
