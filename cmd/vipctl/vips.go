package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/failover"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
)

func vipVerb() *cli.Verb {
	return &cli.Verb{
		Name: "vip", Args: "move ADDRESS|@GROUP | balance", Brief: "move VIPs that have one owner to other hosts",
		About: `"vip move" moves a VIP with one owner (hold = "one") to the host of --to, or
to the best other host. The VIP is not answered for some milliseconds. The
command returns when the new owner announces the VIP, and prints how long that
took, or fails with the reason; "vipctl get vips" lists owners. A host that
can't serve the VIP is refused unless --force is given. VIPs of a group move
together.

If VRRP decides, run "vip move" on the owner. The other host with the highest
priority takes the VIPs of the group; --to ADDRESS only checks which host did.
If no other host takes them, the owner takes them back, and the command fails.
Afterwards, this host does not preempt until the next move or "vipctl node
resume".

"vip balance" moves VIPs until no other move brings the hosts closer to their
shares, by ownership.weight. It is useful after a host has returned, because
VIPs stay where they are then. Groups move together, and no VIP moves to a
host that it prefers less. --dry-run only lists the moves.`,
		Example: "vipctl vip move 192.168.1.100 --to gw2 --reason \"new kernel on gw1\"",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "move the VIP to `NODE`; with VRRP, write the host's address instead"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "wait at most this `TIME` for the new owner"},
			&cli.BoolFlag{Name: "force", Usage: "move the VIP even to a host that can't serve it, and leave it there"},
			&cli.BoolFlag{Name: "dry-run", Usage: "balance: list the moves without making them"},
			reasonFlag(),
		},
		Formats: []string{cli.FormTable, cli.FormJSON}, Fleet: true, MinArgs: 1, MaxArgs: 2,
		Complete: cli.InTurn(cli.OneOf("move", "balance"), vipNames), Run: runVIP,
	}
}

func vipNames(c *cli.Call, _ []string) []string {
	all, _ := someVIPs(c) // no completion without an answer
	return lists.Mapped(all, func(v ownedVIP) string { return v.name() })
}

// ownedVIP is a VIP with one owner, as get and describe show it.
type ownedVIP struct {
	VIP   netip.Addr `json:"vip"`
	Hold  string     `json:"hold"`
	Owner string     `json:"owner,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	Why   string     `json:"why,omitempty"`
	// Ready lists the nodes that could own the VIP, starting with the preferred node. Not maps the
	// other nodes to the reason why they can't.
	Ready []string          `json:"ready"`
	Not   map[string]string `json:"not,omitempty"`
	vipSettings
	// Session is the owner's session, which the nodes in Jury confirm.
	Session string   `json:"session,omitempty"`
	Jury    []string `json:"jury,omitempty"`
	// Move is a requested move that has not completed.
	Move *failover.Move `json:"move,omitempty"`
	// VRRP is the state of the VIP's group, if VRRP decides the owner.
	VRRP *api.OwnerGroup `json:"vrrp,omitempty"`
	vipHistory
}

// vipSettings is a VIP's settings in etcd, and the services in etcd that use it.
type vipSettings struct {
	Group    string           `json:"group,omitempty"`
	Prefer   []string         `json:"prefer,omitempty"`
	Require  balancer.Require `json:"require"`
	Services []string         `json:"services"`
}

// vipHistory holds the information about a VIP that only describe shows.
type vipHistory struct {
	// Confirmed maps each juror to the age of its newest confirmation in seconds, if this host is
	// the owner. The age is -1 if there is none.
	Confirmed map[string]float64 `json:"confirmed,omitempty"`
	// Last lists the latest owners stored in etcd, starting with the newest.
	Last []failover.Owner `json:"last,omitempty"`
}

func (v *ownedVIP) name() string { return v.VIP.String() }

// someVIPs reads the VIPs with hold = "one". If VRRP decides their owners, it asks this host's
// daemon; otherwise it reads etcd.
func someVIPs(c *cli.Call) (all []ownedVIP, err error) {
	if c.OwnsByVRRP() {
		all, _, err = vrrpVIPs(c)
		return all, err
	}
	all, _, err = ownedVIPs(c)
	return all, err
}

// ownedVIPs reads the VIPs with hold = "one" from etcd, and the weights of the nodes that may own
// them. It does not read the nodes' own files.
func ownedVIPs(c *cli.Call) (all []ownedVIP, weights map[string]int, err error) {
	w, err := c.Etcd()
	if err != nil {
		return nil, nil, err
	}
	s, err := readEtcd(w, c)
	if err != nil {
		return nil, nil, err
	}
	in := balancer.Inputs{VIPs: s.VIPs, Pools: s.Pools}
	services := map[netip.Addr][]string{}
	for a := range s.VIPs.Keys() {
		services[a] = nil
	}
	for name, service := range s.Services.All() {
		for _, a := range service.Addresses() {
			services[a] = append(services[a], string(name))
		}
	}
	var wanted []netip.Addr
	for a := range services {
		if in.PolicyOf(a).Hold == balancer.HoldOne {
			wanted = append(wanted, a)
		}
	}
	owned, weights, err := w.OwnedVIPs(c, wanted...)
	if err != nil {
		return nil, nil, fmt.Errorf("reading VIPs' owners: %w", err)
	}
	for _, v := range owned {
		policy := in.PolicyOf(v.Addr)
		out := ownedVIP{
			VIP: v.Addr, Hold: "one", Ready: lists.NonNil(v.Ready), Not: v.Not, Move: v.Move,
			vipSettings: vipSettings{Group: policy.Group, Prefer: policy.Prefer, Require: policy.Require, Services: lists.NonNil(services[v.Addr])},
		}
		if v.Live {
			out.Owner = v.Owner.Node
			out.Since = &v.Owner.Since
			out.Why = v.Owner.Why
			out.Session = v.Owner.Session.String()
			out.Jury = v.Jury
		}
		all = append(all, out)
	}
	rankNodes(all, weights)
	return all, weights, nil
}

// rankNodes sorts the nodes that could own each VIP, starting with the preferred node. It removes a
// node with weight 0, unless the VIP prefers the node, or the node already owns VIPs in the group.
func rankNodes(all []ownedVIP, weights map[string]int) {
	owned := map[string]int{}
	first, leader := map[string]*ownedVIP{}, map[string]string{} // keys are groups
	for _, v := range byName(all) {
		if v.Owner != "" {
			owned[v.Owner]++
			leader[v.Group] = cmp.Or(leader[v.Group], v.Owner)
		}
		first[v.Group] = cmp.Or(first[v.Group], &v)
	}
	load := func(node string) (vips, weight int) { return owned[node], weights[node] }
	for i := range all {
		v := &all[i]
		by, at := v, ""
		if g := v.Group; g != "" {
			by, at = first[g], leader[g]
		}
		v.Ready = slices.DeleteFunc(v.Ready, func(node string) bool {
			no := weights[node] == 0 && !slices.Contains(by.Prefer, node) && node != at
			if no {
				v.Not[node] = "its weight is 0"
			}
			return no
		})
		slices.SortFunc(v.Ready, func(a, b string) int {
			switch at {
			case a:
				return -1
			case b:
				return 1
			}
			return failover.Better(by.name(), by.Prefer, a, b, load)
		})
	}
}

// byName sorts VIPs by their text, and returns them.
func byName(all []ownedVIP) []ownedVIP {
	return slices.SortedFunc(slices.Values(all), func(a, b ownedVIP) int { return strings.Compare(a.name(), b.name()) })
}

func runVIP(c *cli.Call) error {
	switch {
	case c.Args[0] == "balance" && len(c.Args) == 1:
		return balanceVIPs(c)
	case c.Args[0] != "move":
		return cli.WrongUse("\"vipctl vip\" has the commands move and balance, not %q; \"vipctl get vips\" lists VIPs", strings.Join(c.Args, " "))
	case len(c.Args) == 1:
		return cli.WrongUse("name the VIP to move; for example: %s", c.Verb.Example)
	}
	a, err := vipNamed(c, c.Args[1])
	if err != nil {
		return err
	}
	began := time.Now()
	if c.OwnsByVRRP() {
		return moveByVRRP(c, a)
	}
	to, announced, err := moveVIP(c, a, c.Flags.String("to"), c.Flags.String("reason"), c.Flags.Bool("force"))
	if err != nil {
		return err
	}
	elapsed := time.Since(began).Round(time.Millisecond)
	return c.Show(map[string]any{"vip": a, "owner": to, "announced": announced, "took": elapsed.Seconds()}, func() string {
		did := "owned"
		if announced {
			did = "announced"
		}
		return fmt.Sprintf("%s: %s by %s after %s\n", a, did, to, elapsed)
	})
}

// moveVIP moves a VIP and returns its new owner, or an error if no new owner announces it within
// --timeout. announced is false if the new owner's version does not report that. If force is true,
// the VIP moves even if the target node can't serve it, and stays there.
func moveVIP(c *cli.Call, a netip.Addr, to, reason string, force bool) (owner string, announced bool, err error) {
	w, err := c.Etcd()
	if err != nil {
		return "", false, err
	}
	limit := c.Flags.Duration("timeout")
	ctx, cancel := context.WithTimeout(c, limit)
	defer cancel()
	return w.MoveVIP(ctx, a, failover.Move{
		To: to, Request: failover.Request{By: operator(c), Reason: reason}, Until: c.Now().Add(limit), Force: force,
	})
}

// vipNamed returns the VIP that an argument names: an address, or @GROUP for the first VIP of a
// group.
func vipNamed(c *cli.Call, name string) (a netip.Addr, err error) {
	group, ok := strings.CutPrefix(name, "@")
	if !ok || group == "" {
		if a, err = netip.ParseAddr(name); err != nil {
			err = cli.WrongUse("%q is neither an address nor @GROUP: \"vipctl get vips\" lists VIPs and groups", name)
		}
		return a, err
	}
	all, err := someVIPs(c)
	if err != nil {
		return a, err
	}
	for _, v := range all {
		if v.Group == group {
			return v.VIP, nil
		}
	}
	if c.OwnsByVRRP() {
		return a, fmt.Errorf("none of this host's VIPs is in group %q; \"vipctl get vips\" lists groups", group)
	}
	return a, fmt.Errorf("no VIP in etcd has group = %q. \"vipctl get vips\" lists the groups in etcd. To move a group from a node's file, name one of its VIPs", group)
}

func fenceNode(c *cli.Call, name string) error {
	if !c.Flags.Bool("is-off") {
		return cli.WrongUse("make sure that %s is off, because otherwise two hosts can answer for its VIPs; then run: vipctl node fence %s --is-off", name, name)
	}
	w, err := c.Etcd()
	if err != nil {
		return err
	}
	if err := w.FenceNode(c, name, failover.Fence{Request: failover.Request{By: operator(c), Reason: c.Flags.String("reason")}}); err != nil {
		return err
	}
	return c.Show(map[string]any{"node": name, "fenced": true}, func() string { return "node " + name + ": fenced; other hosts may own its VIPs\n" })
}

// vips returns the kind of object that "get vips" lists: VIPs with one owner.
func vips(c *cli.Call) *kind[ownedVIP] {
	if c.OwnsByVRRP() {
		return &kind[ownedVIP]{
			name: "VIP with one owner", where: " on this host", read: readVRRP, id: (*ownedVIP).name, table: vipsTable,
			none: "this host has no VIPs with one owner (hold = \"one\")",
		}
	}
	return &kind[ownedVIP]{
		name: "VIP with one owner", where: " in etcd", read: readVIPs, id: (*ownedVIP).name, table: vipsTable,
		none: "there are no VIPs with one owner (hold = \"one\") in etcd",
	}
}

// noHost is the message if no vipd owner is registered.
const noHost = "no host is allowed to own VIPs: set [ownership] enabled = true and run \"vipd owner\" (systemctl start vipd-owner)"

// readVIPs calls show with the VIPs. It then returns an error if one of the requested VIPs has no
// owner.
func readVIPs(c *cli.Call, show func([]ownedVIP) error) error {
	if _, err := c.Etcd(); err != nil { // an invalid etcd configuration is not retried
		return err
	}
	return showVIPs(c, func() (vipList, error) {
		all, weights, err := ownedVIPs(c)
		l := vipList{all: all}
		if without := unowned(c, all); without != "" {
			why := "\"vipctl get vips -o json\" shows the reason for each node"
			if len(weights) == 0 {
				why = noHost
			}
			l.lack = fmt.Errorf("no node owns %s: %s", without, why)
		}
		return l, err
	}, show)
}

// vipList holds the VIPs with one owner. lack describes missing owners, or is nil if no owner is
// missing.
type vipList struct {
	all  []ownedVIP
	lack error
}

// changing returns the list's data without VRRP's timers, which change every second.
func (l vipList) changing() any {
	plain := slices.Clone(l.all)
	for i := range plain {
		plain[i].VRRP = nil
	}
	return []any{plain, fmt.Sprint(l.lack)}
}

// showVIPs shows the result of read, and then returns an error if an owner is missing. With -w, it
// prints this error below the list, and shows the list again after each change.
func showVIPs(c *cli.Call, read func() (vipList, error), show func([]ownedVIP) error) error {
	return showPolled(c, read, vipList.changing, func(l vipList) error {
		err := show(l.all)
		if err == nil && l.lack != nil && c.Flags.Bool("watch") {
			c.Note("%v", l.lack)
			return nil
		}
		return cmp.Or(err, l.lack)
	})
}

// unowned lists the requested VIPs without an owner.
func unowned(c *cli.Call, all []ownedVIP) string {
	var without []string
	for _, v := range all {
		if name := c.Argument(1); v.Owner == "" && (name == "" || name == v.name()) {
			without = append(without, v.name())
		}
	}
	return strings.Join(without, ", ")
}

func vipsTable(p *cli.Printer, vips []ownedVIP) *table.Table {
	t := table.New(table.Column{Title: "VIP"}, table.Column{Title: "HOLD"}, table.Column{Title: "OWNER"}, table.Column{Title: "SINCE"},
		table.Column{Title: "GROUP"}, table.Column{Title: "WHY"}, table.Column{Title: "READY"}, table.Column{Title: "SERVICES"})
	for _, v := range vips {
		owner := "-"
		since := ""
		ready := few(p, v.Ready, 3)
		if v.Owner != "" {
			owner = v.Owner
		}
		if v.Since != nil {
			since = v.Since.Local().Format(time.DateTime)
		}
		if v.VRRP != nil {
			ready = strings.TrimPrefix(ready+"; others: unknown", "; ")
		}
		t.Row(v.name(), v.Hold, owner, since, v.Group, v.Why, ready, few(p, v.Services, 3))
	}
	return t
}
