package vrrp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Group is the configuration of a virtual router: VIPs that have the same owner.
type Group struct {
	Name     string
	RouterID uint8
	// Priority is this host's priority, 2 to 254. The router with the highest priority owns the
	// VIPs.
	Priority uint8
	Version  int // 2 or 3
	Interval time.Duration
	// DownAdverts is the number of missed adverts after which a backup takes over. Zero means 3.
	// All routers must use the same number.
	DownAdverts int
	// Preempt is how long this host must be healthy before it takes over from a router with a lower
	// priority. Never means that it does not take over.
	Preempt time.Duration
	// Link is the link for sending and receiving adverts.
	Link Link
	// Advertise lists the addresses in adverts, and VIPs lists all addresses that move together.
	Advertise, VIPs []netip.Addr
	// Password is the password that version 2 sends, or "".
	Password string
	// Checksum is the kind of checksum that this host sends. If empty, this host sends the kind
	// that the receiver uses.
	Checksum Checksum
	// Unyielding reports whether this host stays Active even if another owner ignores its adverts.
	Unyielding bool
	Witness    Witness
}

// Witness determines how a group uses its witnesses. Witnesses are hosts whose answers show that
// this host is connected.
type Witness string

// These are the ways to use witnesses.
const (
	NoWitness Witness = ""
	// WitnessResigns makes an owner resign if all witnesses fall silent.
	WitnessResigns Witness = "resigns"
	// WitnessRequired also keeps a backup from taking over from a silent owner unless a witness
	// answers.
	WitnessRequired Witness = "required"
)

// Never is the Group.Preempt that stops this host from ever taking over from a healthy router.
const Never time.Duration = -1

// Link is the link on which a group sends and receives adverts.
type Link struct {
	// On is the process's index for the interface.
	On int
	// Source is this host's address on the interface. Its family is the group's.
	Source netip.Addr
	// Peers lists the only other routers, for unicast. If nil, adverts use multicast.
	Peers []netip.Addr
	// MinTTL is the minimum TTL of adverts from peers. Zero means 255.
	MinTTL int
}

// sameRouter reports whether another configuration can replace this one while the group is Active.
func (g *Group) sameRouter(o *Group) bool {
	return g.RouterID == o.RouterID && g.Version == o.Version && g.Link.On == o.Link.On && g.Link.Source == o.Link.Source
}

// receivers returns the addresses to which adverts are sent.
func (l *Link) receivers() []netip.Addr {
	if len(l.Peers) > 0 {
		return l.Peers
	}
	return []netip.Addr{MulticastGroup(l.Source.Is4())}
}

// advert returns the group's advert with a priority.
func (g *Group) advert(priority uint8) *Advert {
	a := &Advert{Version: g.Version, RouterID: g.RouterID, Priority: priority, Interval: g.Interval, Addrs: g.Advertise}
	if g.Version == 2 && g.Password != "" {
		a.Auth, a.Password = SimpleAuth, g.Password
	}
	return a
}

// label describes the group through its first VIPs, for operators.
func (g *Group) label() string {
	const listed = 3
	var names []string
	for _, a := range g.VIPs[:min(len(g.VIPs), listed)] {
		names = append(names, a.String())
	}
	text := strings.Join(names, ", ")
	if more := len(g.VIPs) - listed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return g.Name + " (" + text + ")"
}

// accept returns the advert in a datagram and its kind of checksum. The error is a *DropError if
// this group can't use it; the advert is then nil unless it is readable and comes from this
// network.
func (g *Group) accept(d *Datagram) (*Advert, Checksum, error) {
	minTTL := TTL
	if len(g.Link.Peers) > 0 && g.Link.MinTTL > 0 {
		minTTL = g.Link.MinTTL
	}
	a, sum, err := Decode(d.Data, d.From, d.To)
	listed := err == nil && slices.ContainsFunc(a.Addrs, func(v netip.Addr) bool { return slices.Contains(g.VIPs, v) })
	switch {
	case d.TTL < minTTL:
		return nil, "", &DropError{LowTTL, fmt.Sprintf("has TTL %d, less than %d", d.TTL, minTTL), listed}
	case len(g.Link.Peers) > 0 && !slices.Contains(g.Link.Peers, d.From):
		return nil, "", &DropError{WrongPeer, "comes from an address that is not in peers", listed}
	case err != nil:
		return nil, "", err
	}
	own := g.advert(g.Priority)
	switch {
	// This check is first, because another router with the same ID must not seem to be an owner of
	// these VIPs.
	case !listed:
		return a, sum, dropf(WrongList, "lists no VIP of %s: another router uses router_id %d, so choose a different router_id", g.Name, g.RouterID)
	case a.Version != g.Version:
		return a, sum, dropf(WrongVersion, "has version %d, but %s has %d", a.Version, g.Name, g.Version)
	case a.Version == 2 && (a.Auth != own.Auth || own.Auth != NoAuth && a.Password != own.Password):
		return a, sum, dropf(WrongPassword, "has a different password, or none")
	case a.Version == 2 && a.Interval != g.Interval:
		return a, sum, dropf(WrongInterval, "has the interval %s, but %s has %s", a.Interval, g.Name, g.Interval)
	}
	return a, sum, nil
}
