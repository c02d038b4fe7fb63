package replies

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

const (
	// tableName is the name of the nf_tables table. trialSuffix is appended to the name of the
	// table that a trial creates and deletes.
	tableName, trialSuffix = "vipd-replies", "-trial"
	// routeTable is the number of the routing table.
	routeTable = 118118
	// rulePriority precedes the routing rules of VPNs and policy routing, which would also match.
	rulePriority = 118
	// protocol marks vipd's rules and routes (see the routes of package host).
	protocol = 118
	// priority follows all other chains, so filters that look up the route back to a packet's
	// source, such as firewalld's, still see the packet's own mark.
	priority = 1000
	// mark is the mark of replies, "vipd" in ASCII. Only packets to vipd's own sockets have it.
	mark uint32 = 0x76697064
)

// Path delivers one family's replies. Calls to its methods must not overlap.
type Path struct {
	table  nft.Maintained
	nl     *netlink.Handle
	family int
	// installed reports whether the table, rule and route exist, as far as is known.
	installed bool
}

// Open returns a family's path, after a trial has proved that the kernel supports it. Set creates
// the kernel's objects.
func Open(family inet.Family) (*Path, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, unusable(family, err)
	}
	p := &Path{table: nft.Maintained{Conn: conn, Table: nft.Table{Family: nft.IPv4, Name: tableName}}, family: netlink.FAMILY_V4}
	if family == inet.IPv6 {
		p.table.Table.Family, p.family = nft.IPv6, netlink.FAMILY_V6
	}
	trial := nft.Maintained{Conn: conn, Table: nft.Table{Family: p.table.Table.Family, Name: tableName + trialSuffix}}
	var tx nft.Tx
	p.define(&tx, trial.Table)
	if err = trial.Try(&tx); err == nil {
		err = conn.Listen()
	}
	if err == nil {
		p.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		return nil, unusable(family, errors.Join(err, conn.Close()))
	}
	return p, nil
}

// unusable returns an error with the reason and advice.
func unusable(family inet.Family, reason error) error {
	need := "this needs Linux 5.11 or later with the module nft_socket"
	if errors.Is(reason, fs.ErrPermission) {
		need = "this needs CAP_NET_ADMIN: run as root"
	}
	return fmt.Errorf("replies to clients' addresses can't be delivered here (%s): %w: %s", family, reason, need)
}

// define adds steps to a transaction that create the table and replace an existing table.
func (p *Path) define(tx *nft.Tx, at nft.Table) {
	tx.AddTable(at) // deleting a missing table would fail
	tx.DeleteTable(at)
	tx.AddTable(at)
	tx.AddChain(at, &nft.Chain{Name: "prerouting", Hook: &nft.Hook{Type: nft.Filter, Point: nft.Prerouting, Priority: priority}})
	// The first match is always true. A rule that reads connection tracking makes the kernel
	// reassemble fragments, of which only the first has ports.
	anyState := nft.Invalid | nft.Established | nft.Related | nft.New | nft.Untracked
	tx.AddRule(at, "prerouting", nft.Rule{Do: []nft.Stmt{anyState, nft.OwnSocket{},
		nft.ClearBits{Field: nft.Mark, Bits: ^uint32(0)}, nft.AddBits{Field: nft.Mark, Bits: mark}}})
}

// Set creates missing objects. It changes nothing if the last check found all of them.
func (p *Path) Set() error {
	if p.installed {
		return nil
	}
	if err := p.setRoute(); err != nil {
		return err
	}
	err := nft.ErrBusy
	for tries := 0; tries < nft.Tries && errors.Is(err, nft.ErrBusy); tries++ {
		if err = p.table.ReadConsistent(func() error { return nil }); err == nil {
			var tx nft.Tx
			p.define(&tx, p.table.Table)
			err = p.table.Commit(&tx)
		}
	}
	if err != nil {
		return fmt.Errorf("marking replies to clients' addresses: %w", err)
	}
	p.installed = true
	return nil
}

// setRoute adds the route and the rule, and deletes a rule for another mark.
func (p *Path) setRoute() error {
	lo, err := p.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("adding the route that sends replies to lo: %w", err)
	}
	if err := p.nl.RouteReplace(p.route(lo.Attrs().Index)); err != nil {
		return fmt.Errorf("adding the route that sends replies to lo, which must be up: %w", err)
	}
	rules, err := p.rules()
	if err != nil {
		return err
	}
	for _, r := range rules {
		if !p.isRule(r) {
			if err := p.nl.RuleDel(&r); err != nil && !errors.Is(err, syscall.ENOENT) {
				return fmt.Errorf("deleting a routing rule: %w", err)
			}
		}
	}
	if err := p.nl.RuleAdd(p.rule()); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("adding the routing rule for replies to clients' addresses: %w", err)
	}
	return nil
}

// route returns the route that makes every address local.
func (p *Path) route(lo int) *netlink.Route {
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	r := &netlink.Route{Dst: all, Table: routeTable, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, LinkIndex: lo, Protocol: protocol}
	if p.family == netlink.FAMILY_V6 {
		r.Dst, r.Scope = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, unix.RT_SCOPE_UNIVERSE
	}
	return r
}

// rule returns the rule that sends marked packets to the route.
func (p *Path) rule() *netlink.Rule {
	r, all := netlink.NewRule(), ^uint32(0)
	r.Family, r.Priority, r.Table, r.Mark, r.Mask, r.Protocol = p.family, rulePriority, routeTable, mark, &all, protocol
	return r
}

func (p *Path) isRule(r netlink.Rule) bool {
	return r.Priority == rulePriority && r.Mark == mark && r.Mask != nil && *r.Mask == ^uint32(0) && !r.Invert && r.IifName == "" && r.OifName == "" && r.Src == nil && r.Dst == nil
}

func (p *Path) rules() (ours []netlink.Rule, err error) { return ourRules(p.nl, p.family) }

// Observe describes a difference between the kernel and the path, until Set repairs it.
func (p *Path) Observe() (damage string, err error) {
	if !p.installed {
		return "their rules and routes are unknown until they are written again", nil
	}
	damage, err = p.table.Changed()
	if damage == "" && err == nil {
		damage, err = p.routed()
	}
	p.installed = damage == "" && err == nil
	return damage, err
}

// Intact describes changes by other programs that a cheap check reveals, or returns "".
func (p *Path) Intact() (damage string, err error) {
	if !p.installed {
		return "", nil
	}
	damage, err = p.table.Look(p.table.Changed)
	if damage != "" || err != nil {
		return damage, err
	}
	return p.routed()
}

// routed describes a missing rule or route, or returns "".
func (p *Path) routed() (string, error) {
	rules, err := p.rules()
	if err != nil {
		return "", err
	}
	if len(rules) != 1 || !p.isRule(rules[0]) {
		return "the routing rule is missing or was changed", nil
	}
	routes, err := ourRoutes(p.nl, p.family)
	if err != nil {
		return "", err
	}
	if len(routes) != 1 {
		return "the route is missing", nil
	}
	return "", nil
}

// Remove deletes the table, the rule and the route.
func (p *Path) Remove() error {
	p.installed = false
	err := p.table.Remove()
	_, failed := unroute(p.nl, p.family, false)
	return errors.Join(err, failed)
}

// Close closes the connections to the kernel, and leaves its objects unchanged.
func (p *Path) Close() {
	p.nl.Close()
	_ = p.table.Conn.Close() // an error of Close is harmless
}
