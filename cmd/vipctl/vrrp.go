package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer/failover/vrrp"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
)

// vrrpVIPs reads this host's VIPs with hold = "one", whose owners VRRP decides.
func vrrpVIPs(c *cli.Call) (all []ownedVIP, o api.Ownership, err error) {
	o, err = cli.AskDaemon(c, (*api.Client).Ownership)
	if err != nil {
		return nil, o, err
	}
	for _, v := range o.VIPs {
		all = append(all, vrrpVIP(&o, &v))
	}
	return all, o, nil
}

func vrrpVIP(o *api.Ownership, v *api.GroupVIP) ownedVIP {
	out := ownedVIP{
		VIP: v.VIP, Hold: "one", Ready: []string{}, VRRP: o.Group(v.Group),
		vipSettings: vipSettings{Group: v.Group, Require: v.Require, Services: v.Services},
	}
	switch {
	case o.Standby != nil:
		out.Not = map[string]string{o.Node: "it is on standby"}
	case v.Cannot != "":
		out.Not = map[string]string{o.Node: v.Cannot}
	default:
		out.Ready = []string{o.Node}
	}
	g := out.VRRP
	if g == nil {
		return out
	}
	out.Why = fmt.Sprintf("priority %d", g.Priority)
	switch {
	case g.State == vrrp.Active:
		out.Owner = o.Node
		if last := lastChange(g); last != nil {
			out.Since = &last.At
			out.Why += "; " + last.Text
		}
	case g.Owner.IsValid():
		out.Owner = g.Owner.String()
		if r := routerOf(g, g.Owner); r != nil {
			out.Why = fmt.Sprintf("priority %d; this host has %d", r.Priority, g.Priority)
		}
	}
	return out
}

// lastChange returns the latest change to a group's state, or nil if none is known.
func lastChange(g *api.OwnerGroup) *api.GroupChange {
	if len(g.Changes) == 0 {
		return nil
	}
	return &g.Changes[len(g.Changes)-1]
}

// routerOf returns the router of group g that has the address a, or nil if none of its adverts were
// received.
func routerOf(g *api.OwnerGroup, a netip.Addr) *vrrp.RouterStatus {
	i := slices.IndexFunc(g.Routers, func(r vrrp.RouterStatus) bool { return r.Addr == a })
	if i < 0 {
		return nil
	}
	return &g.Routers[i]
}

// readVRRP is like readVIPs for VIPs whose owners VRRP decides.
func readVRRP(c *cli.Call, show func([]ownedVIP) error) error {
	return showVIPs(c, func() (vipList, error) {
		all, o, err := vrrpVIPs(c)
		l := vipList{all: all}
		if without := unowned(c, all); o.Unknown != "" {
			l.lack = errors.New(o.Unknown)
		} else if without != "" {
			l.lack = fmt.Errorf("no owner of %s is known: \"vipctl status\" lists this host's problems", without)
		}
		return l, err
	}, show)
}

// moveByVRRP passes a VIP's group to another host, and prints the new owner.
func moveByVRRP(c *cli.Call, a netip.Addr) error {
	if c.Flags.Bool("force") {
		return cli.WrongUse("--force needs etcd: with VRRP, this host takes back a VIP that no other host takes over")
	}
	var to netip.Addr
	if text := c.Flags.String("to"); text != "" {
		var err error
		if to, err = netip.ParseAddr(text); err != nil {
			return cli.WrongUse("--to %s is not an address: with VRRP, write the address that another host sends adverts from", text)
		}
	}
	o, err := cli.AskDaemon(c, (*api.Client).Ownership)
	if err != nil {
		return err
	}
	g, err := groupHere(&o, a)
	if err != nil {
		return err
	}
	owned := func(owner netip.Addr, took time.Duration, text string) error {
		return c.Show(map[string]any{"vip": a, "owner": owner, "took": took.Seconds()}, func() string { return fmt.Sprintf("%s: %s\n", a, text) })
	}
	switch {
	case to.IsValid() && to == g.Owner:
		return owned(to, 0, "this host is already its owner")
	case to.IsValid() && len(g.Peers) > 0 && !slices.Contains(g.Peers, to):
		return cli.WrongUse("--to %s is not among the peers of %s: write the address of a peer", to, g.Name)
	}
	began := c.Now()
	owner, err := handOver(c, a, g.Name, c.Flags.Duration("timeout"))
	if err != nil {
		return err
	}
	if to.IsValid() && to != owner {
		return fmt.Errorf("%s took over %s instead of %s: with VRRP, the other host with the highest priority takes over", owner, g.Name, to)
	}
	elapsed := c.Now().Sub(began).Round(time.Millisecond)
	return owned(owner, elapsed, fmt.Sprintf("owned by %s after %s", owner, elapsed))
}

// groupHere returns a VIP's group, or an error if this host does not own the VIP.
func groupHere(o *api.Ownership, a netip.Addr) (*api.OwnerGroup, error) {
	i := slices.IndexFunc(o.VIPs, func(v api.GroupVIP) bool { return v.VIP == a })
	if i < 0 {
		var known []string
		for _, v := range o.VIPs {
			known = append(known, v.VIP.String())
		}
		return nil, absent("VIP with one owner", a.String(), " on this host", known)
	}
	g := o.Group(o.VIPs[i].Group)
	switch {
	case o.Unknown != "":
		return nil, errors.New(o.Unknown)
	case g == nil:
		return nil, fmt.Errorf("%s's group is not on this host: \"vipctl status\" shows the reason", a)
	case g.State == vrrp.Active:
		return g, nil
	case g.Owner.IsValid():
		return nil, cli.WrongUse("%s owns %s: run this command there", g.Owner, a)
	}
	return nil, fmt.Errorf("this host does not own %s, and the owner is unknown: this host is %s in %s", a, g.State, g.Name)
}

// handOver passes a VIP's group to another host, and returns that host's address. If no other host
// accepts the group, this host becomes the owner again, and handOver returns an error.
func handOver(c *cli.Call, a netip.Addr, group string, limit time.Duration) (owner netip.Addr, err error) {
	began := c.Now()
	by := api.MoveRequest{By: operator(c), Reason: c.Flags.String("reason")}
	o, err := cli.AskDaemon(c, func(d *api.Client, ctx context.Context) (api.Ownership, error) { return d.MoveVIP(ctx, a, by) })
	for ; err == nil; o, err = cli.AskDaemon(c, (*api.Client).Ownership) {
		g, elapsed := o.Group(group), c.Now().Sub(began)
		switch {
		case g == nil:
			return owner, errors.New(cmp.Or(o.Unknown, group+" is no longer on this host"))
		case g.State == vrrp.Active && unableOwner(g, elapsed).IsValid():
			return owner, fmt.Errorf("%s took %s, but can't serve it, so this host took it back after %s: \"vipctl status\" there shows the reason", unableOwner(g, elapsed), group, elapsed.Round(time.Millisecond))
		case g.State == vrrp.Active:
			return owner, fmt.Errorf("no other host took %s, so this host took it back after %s: vipd owner or keepalived must run on another host with the same router_id", group, elapsed.Round(time.Millisecond))
		case takenOver(g, elapsed):
			return g.Owner, nil
		case elapsed >= limit:
			return owner, fmt.Errorf("no host took %s within %s: \"vipctl get vips\" shows its owner", group, limit)
		case !wake.Sleep(c, 20*time.Millisecond):
			return owner, c.Err()
		}
	}
	return owner, err
}

// takenOver reports whether another host owns the group and can serve the VIPs. That host must have
// sent adverts since the move. A host that can't serve the VIPs sends priority 1, and this host
// then becomes the owner again.
func takenOver(g *api.OwnerGroup, since time.Duration) bool {
	r := routerOf(g, g.Owner)
	return r != nil && r.Age >= 0 && r.Age < since && r.Priority > 1
}

// unableOwner returns a host that has sent adverts since the move but can't serve the VIPs. If
// there is none, it returns the zero address.
func unableOwner(g *api.OwnerGroup, since time.Duration) (host netip.Addr) {
	for _, r := range g.Routers {
		if r.Age >= 0 && r.Age < since && r.Priority == 1 {
			host = r.Addr
		}
	}
	return host
}

// vrrpStandbyTimeout limits how long a host may take to pass its groups to other hosts.
const vrrpStandbyTimeout = 10 * time.Second

// standbyChange is the result of a request for standby. Owners maps the host's groups to their new
// owners.
type standbyChange struct {
	Node    string                `json:"node"`
	Standby bool                  `json:"standby"`
	Changed bool                  `json:"changed"`
	Owners  map[string]netip.Addr `json:"owners"`
}

// standbyByVRRP puts this host on standby, or ends the standby, and prints the result.
func standbyByVRRP(c *cli.Call, on bool, name string) error {
	o, err := cli.AskDaemon(c, (*api.Client).Ownership)
	switch {
	case err != nil:
		return err
	case name != "" && name != o.Node:
		return cli.WrongUse("this host is %s, and with VRRP a host can only put itself on standby: run this command on %s", o.Node, name)
	}
	r, err := setStandby(c, &o, on)
	if err != nil {
		return err
	}
	return c.Show(r, func() string { return standbyText(r.Node, on, r.Changed, r.Owners) })
}

// setStandby passes this host's groups to other hosts, and then puts this host on standby. With
// --force, it does not wait for other hosts. If on is false, it ends the standby.
func setStandby(c *cli.Call, o *api.Ownership, on bool) (r standbyChange, err error) {
	r = standbyChange{Node: o.Node, Standby: on, Changed: (o.Standby != nil) != on, Owners: map[string]netip.Addr{}}
	vips := map[string]netip.Addr{} // one VIP from each group to hand over
	for i := range o.Groups {
		g := &o.Groups[i]
		if !on || g.State != vrrp.Active || c.Flags.Bool("force") {
			continue
		}
		at := slices.IndexFunc(o.VIPs, func(v api.GroupVIP) bool { return v.Group == g.Name })
		if at < 0 {
			return r, errors.New("vipd and vipd owner have different groups: systemctl restart vipd vipd-owner")
		}
		vips[g.Name] = o.VIPs[at].VIP
	}
	for _, group := range slices.Sorted(maps.Keys(vips)) {
		if r.Owners[group], err = handOver(c, vips[group], group, vrrpStandbyTimeout); err != nil {
			return r, fmt.Errorf("%s is not on standby: %w (--force puts it on standby, and %s might then have no owner)", o.Node, err, vips[group])
		}
	}
	q := api.StandbyRequest{On: on, By: operator(c), Reason: c.Flags.String("reason")}
	_, err = cli.AskDaemon(c, func(d *api.Client, ctx context.Context) (api.Ownership, error) { return d.Standby(ctx, q) })
	return r, err
}

// drainByVRRP puts this host on standby before its endpoints are drained, or ends the standby. It
// does nothing if node is another host. left reports whether the node may have endpoints to drain.
func drainByVRRP(c *cli.Call, node string, on bool) (left bool, err error) {
	o, err := cli.AskDaemon(c, (*api.Client).Ownership)
	switch {
	case err != nil && c.OverridesInEtcd() && node != c.Node():
		return true, nil // draining another host does not need a local vipd
	case err != nil && node == c.Node():
		return false, fmt.Errorf("only a running vipd can hand over this host's VIPs: %w", err)
	case err != nil || o.Node != node:
		return true, err
	}
	r, err := setStandby(c, &o, on)
	if err != nil {
		return false, err
	}
	c.Say("%s", strings.TrimSuffix(standbyText(r.Node, on, r.Changed, r.Owners), "\n"))
	endpoints, err := cli.AskDaemon(c, (*api.Client).Endpoints)
	return slices.ContainsFunc(endpoints, func(e api.Endpoint) bool { return e.Node == node }), err
}

// standbyText describes the result of a request for standby.
func standbyText(node string, on, changed bool, owners map[string]netip.Addr) string {
	text := "node " + node + ": it may own VIPs again"
	if on {
		text = "node " + node + ": on standby until \"vipctl node resume\""
	}
	if !changed {
		text += " (no change)"
	}
	for _, group := range slices.Sorted(maps.Keys(owners)) {
		text += fmt.Sprintf("; %s owns %s", owners[group], group)
	}
	return text + "\n"
}

// vrrpText describes a VIP whose owner VRRP decides.
func vrrpText(p *cli.Printer, v *ownedVIP) string {
	out, g := &sheet{Printer: p}, v.VRRP
	out.line("vip", v.VIP.String())
	out.text("policy", "one owner, require "+string(v.Require))
	out.text("services", cmp.Or(strings.Join(v.Services, ", "), "none"))
	switch {
	case v.Owner == "":
		out.painted("owner", "unknown", table.Bad)
	case v.Since != nil:
		out.text("owner", fmt.Sprintf("%s, since %s (%s)", v.Owner, ago(p, *v.Since), v.Why))
	default:
		out.text("owner", fmt.Sprintf("%s (%s)", v.Owner, v.Why))
	}
	for _, node := range v.Ready {
		out.text("ready", node+"; unknown for other hosts, because VRRP backups send nothing")
	}
	for node, why := range v.Not {
		out.text("ready", "not "+node+": "+why)
	}
	if g == nil {
		out.painted("group", cmp.Or(v.Group, "none")+" is not on this host: \"vipctl status\" shows the reason", table.Bad)
		return out.b.String()
	}
	out.text("group", fmt.Sprintf("%s is %s here: router_id %d, version %d, priority %d; %s", g.Name, g.State, g.RouterID, g.Version, g.Priority, nextStep(g)))
	for _, problem := range g.Problems {
		out.painted("", problem, table.Bad)
	}
	out.section("other routers", routersTable(g))
	t := table.New(table.Column{Title: "AT"}, table.Column{Title: "FROM"}, table.Column{Title: "TO"}, table.Column{Title: "WHY"})
	for _, change := range slices.Backward(g.Changes) {
		t.Row(change.At.Local().Format(time.DateTime), string(change.From), string(change.To), change.Text)
	}
	out.section("last changes", t)
	return out.b.String()
}

// nextStep describes the age of the last advert that this host sent, or the time until this host
// takes over.
func nextStep(g *api.OwnerGroup) string {
	switch g.State {
	case vrrp.Active:
		return fmt.Sprintf("last advert sent %.2fs ago", g.Advertised.Seconds())
	case vrrp.Backup:
		return fmt.Sprintf("takes over in %.2fs unless an advert arrives", g.Left.Seconds())
	}
	return "it sends no adverts"
}

// routersTable lists a group's other routers.
func routersTable(g *api.OwnerGroup) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "PRIORITY", Right: true}, table.Column{Title: "INTERVAL", Right: true},
		table.Column{Title: "CHECKSUM"}, table.Column{Title: "LAST ADVERT", Right: true}, table.Column{Title: "VIPS"}, table.Column{Title: "DIFFERS"})
	for _, r := range g.Routers {
		priority := ""
		interval := ""
		age := "never"
		if r.Age >= 0 {
			priority = strconv.Itoa(int(r.Priority))
			interval = r.Interval.String()
			age = fmt.Sprintf("%.2fs ago", r.Age.Seconds())
		}
		var vips []string
		for _, a := range r.Addrs {
			vips = append(vips, a.String())
		}
		t.Row(r.Addr.String(), priority, interval, string(r.Checksum), age, strings.Join(vips, ","), r.Differs)
	}
	return t
}
