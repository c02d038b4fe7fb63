package vrrp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer/failover/local"
)

// peer is another router that sends adverts with the group's router ID.
type peer struct {
	addr netip.Addr
	// advert is the router's last accepted advert, sum is the kind of its checksum, and at is when
	// it arrived.
	advert   *Advert
	sum      Checksum
	at       local.Time
	received uint64
	// drop is the reason why the router's last dropped packet was dropped, and droppedAt is when
	// that packet arrived. noted is when the last note about the router's dropped packets was
	// written.
	drop             *DropError
	droppedAt, noted local.Time
	// named reports whether metrics name the router.
	named bool
	// every is the interval in the router's last readable advert, or 0.
	every time.Duration
}

type peers struct {
	byAddr map[netip.Addr]*peer
	// drops counts the packets that were dropped, by reason.
	drops map[Reason]uint64
	// owner is the sender of the last accepted advert.
	owner   *peer
	yielded yielded
	notes   noteLimit
	// named is the number of routers that metrics name.
	named int
}

// maxPeers is the maximum number of remembered routers, and maxNamed is the maximum number of
// routers in metrics. Any host on the network can pretend to be many routers.
const (
	maxPeers = 32
	maxNamed = 8
)

func (p *peers) accepted(now local.Time, from *peer, a *Advert, sum Checksum) {
	if from.received == 0 && p.named < maxNamed {
		from.named = true
		p.named++
	}
	from.advert = a
	from.sum = sum
	from.at = now
	from.received++
	p.owner = from
}

// find returns the entry for a router, and adds it if missing. If there are too many entries, it
// replaces the oldest that metrics do not name.
func (p *peers) find(addr netip.Addr) *peer {
	if one := p.byAddr[addr]; one != nil {
		return one
	}
	if len(p.byAddr) >= maxPeers {
		others := slices.DeleteFunc(p.sorted(), func(one *peer) bool { return one.named })
		oldest := slices.MinFunc(others, func(a, b *peer) int { return cmp.Compare(max(a.at, a.droppedAt), max(b.at, b.droppedAt)) })
		delete(p.byAddr, oldest.addr)
	}
	p.byAddr[addr] = &peer{addr: addr}
	return p.byAddr[addr]
}

func (p *peers) sorted() (all []*peer) {
	for _, one := range p.byAddr {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *peer) int { return a.addr.Compare(b.addr) })
	return all
}

// interval returns the time between two adverts of the router, or a default if it is unknown.
func (p *peer) interval(unknown time.Duration) time.Duration { return cmp.Or(p.every, unknown) }

// counts reports whether the sender of the dropped packet may still own the group's VIPs.
func (e *DropError) counts() bool {
	switch e.Reason {
	case WrongChecksum, WrongVersion, WrongInterval, WrongPassword:
		return true
	case LowTTL, WrongPeer:
		return e.listed
	}
	return false
}

// distant reports whether the router's last packet was dropped because it may come from another
// network. Such a packet alone does not prove that the router has the VIPs.
func (p *peer) distant() bool { return p.drop != nil && p.drop.Reason == LowTTL && p.droppedAt > p.at }

// owners returns the routers that were owners recently, sorted by address.
func (p *peers) owners(now local.Time, g *Group) (all []*peer) {
	for _, one := range p.sorted() {
		within := func(at local.Time, interval time.Duration) bool { return at > 0 && now.Since(at) <= g.k()*interval }
		accepted := one.advert != nil && one.advert.Priority != resignPriority && within(one.at, one.advert.Interval)
		dropped := one.drop != nil && one.drop.counts() && one.droppedAt > one.at && within(one.droppedAt, one.interval(g.Interval))
		if accepted || dropped {
			all = append(all, one)
		}
	}
	return all
}

// resigned reports whether the owner has resigned recently.
func (p *peers) resigned(now local.Time, g *Group) bool {
	o := p.owner
	return o != nil && o.advert.Priority == resignPriority && now.Since(o.at) <= g.DownTime(unfitPriority, o.advert.Interval)
}

// heardLast returns the router that sent the last packet, even if the packet was dropped, or nil.
func (p *peers) heardLast() (last *peer) {
	for _, one := range p.sorted() {
		if last == nil || max(one.at, one.droppedAt) > max(last.at, last.droppedAt) {
			last = one
		}
	}
	return last
}

// claimed returns the cause to record if this host takes over now.
func (p *peers) claimed(now local.Time, g *Group) cause {
	switch o := p.owner; {
	case o == nil && len(p.owners(now, g)) > 0:
		return cause{"silence", "the adverts from " + p.heardLast().addr.String() + " are dropped"}
	case o == nil:
		return cause{"silence", "no adverts from another owner arrived"}
	case p.resigned(now, g):
		return cause{"resigned", o.addr.String() + " resigned"}
	case len(p.owners(now, g)) > 0:
		return cause{"preempted", fmt.Sprintf("preempted %s, whose priority is %d", o.addr, o.advert.Priority)}
	default:
		return cause{"silence", fmt.Sprintf("%s was silent for %s", o.addr, formatSeconds(now.Since(o.at)))}
	}
}

// checksum returns the kind of checksum for a receiver. Unless the configuration sets the kind, it
// is the kind that the receiver itself sends, or keepalived's default if that is unknown.
func (p *peers) checksum(to netip.Addr, g *Group) Checksum {
	from := p.byAddr[to]
	if to.IsMulticast() {
		from = p.owner
	}
	if g.Checksum == "" && from != nil && from.sum != "" {
		return from.sum
	}
	return cmp.Or(g.Checksum, Pseudo)
}

// differs describes how a router's configuration differs from the group's. It returns "" if there
// is no known difference.
func (p *peer) differs(g *Group) string {
	var all []string
	if a := p.advert; a != nil {
		for _, v := range a.Addrs {
			if !slices.Contains(g.Advertise, v) {
				all = append(all, fmt.Sprintf("it also lists %s", v))
			}
		}
		for _, v := range g.Advertise {
			if !slices.Contains(a.Addrs, v) {
				all = append(all, fmt.Sprintf("it does not list %s", v))
			}
		}
		if a.Interval != g.Interval {
			all = append(all, fmt.Sprintf("its interval is %s, not %s", a.Interval, g.Interval))
		}
		if a.Version == 3 && p.addr.Is4() && g.Checksum != "" && g.Checksum != p.sum {
			all = append(all, fmt.Sprintf("its checksum is %s, not %s", p.sum, g.Checksum))
		}
	}
	if p.drop != nil && p.droppedAt > p.at {
		all = append(all, "its advert "+p.drop.Text)
	}
	return strings.Join(all, "; ")
}

// noteEvery is the minimum time between notes about the same router. maxNotes is the maximum number
// of notes about all routers in that time.
const (
	noteEvery = time.Minute
	maxNotes  = 10
)

// noteLimit limits the notes about other routers, because any host on the network can cause them.
type noteLimit struct {
	since local.Time
	count int
}

// allow counts a note, and reports whether it may be sent.
func (l *noteLimit) allow(now local.Time) bool {
	if l.count == 0 || now.Since(l.since) >= noteEvery {
		*l = noteLimit{since: now}
	}
	l.count++
	return l.count <= maxNotes
}

// dropped records a packet that a group can't use.
func (p *peers) dropped(e *env, g *Group, from *peer, err error) {
	var drop *DropError
	errors.As(err, &drop)
	p.drops[drop.Reason]++
	news := from.drop == nil || from.drop.Reason != drop.Reason || e.now.Since(from.noted) >= noteEvery
	if news && p.notes.allow(e.now) {
		from.noted = e.now
		text := fmt.Sprintf("dropped adverts from %s for %s: the advert %s", from.addr, g.Name, drop.Text)
		e.do(local.Note{Kind: local.NoteRefused, Text: text, Why: string(drop.Reason)})
	}
	from.drop, from.droppedAt = drop, e.now
}
