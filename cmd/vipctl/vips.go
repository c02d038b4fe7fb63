package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"vipd/balancer/ownership"
	"vipd/cmd/internal/table"
	"vipd/store/etcd"
)

func vipVerb() *verb {
	return &verb{
		name: "vip", args: "move ADDRESS", brief: "move a VIP that has one owner to another host",
		about: "Has the owner of a VIP (hold = \"one\") give it to another host: --to NODE, or the one that is best for it. It is silent " +
			"for some milliseconds. The command ends when the VIP has moved, or says why it has not; \"vipctl get vips\" lists " +
			"owners. A host that can't serve the VIP is refused unless --force is given.",
		example: "vipctl vip move 192.168.1.100 --to gw2 --reason \"new kernel on gw1\"",
		flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "the `NODE` that is to have it"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "how `LONG` to wait for the owner"},
			&cli.BoolFlag{Name: "force", Usage: "move it to a host that can't serve it, too"},
			reasonFlag(),
		},
		formats: []string{formTable, formJSON}, fleet: true, least: 2, most: 2,
		complete: inTurn(oneOf("move"), vipNames), run: runVIP,
	}
}

func vipNames(c *call, _ []string) []string {
	all, _ := askEtcd(c, (*etcd.Writer).OwnedVIPs) // no answer, no names
	return mapped(all, func(v etcd.OwnedVIP) string { return v.Addr.String() })
}

func runVIP(c *call) error {
	if c.args[0] != "move" {
		return wrongUse("\"vipctl vip\" knows move, not %q; \"vipctl get vips\" lists VIPs", c.args[0])
	}
	a, err := netip.ParseAddr(c.args[1])
	if err != nil {
		return wrongUse("%q is not an address", c.args[1])
	}
	w, err := c.fleet.writer()
	if err != nil {
		return err
	}
	limit := c.flags.Duration("timeout")
	ctx, cancel := context.WithTimeout(c, limit)
	defer cancel()
	began := time.Now()
	to, err := w.MoveVIP(ctx, a, ownership.Move{
		To: c.flags.String("to"), By: c.operator(), Reason: c.flags.String("reason"), Until: began.Add(limit), Force: c.flags.Bool("force"),
	})
	if err != nil {
		return err
	}
	took := time.Since(began).Round(time.Millisecond)
	return c.show(map[string]any{"vip": a, "owner": to, "took": took.Seconds()}, func() string { return fmt.Sprintf("%s: its owner is %s, after %s\n", a, to, took) })
}

// fenceNode states that a node is off.
func fenceNode(c *call, name string) error {
	if !c.flags.Bool("is-off") {
		return wrongUse("make sure that %s is off, or two hosts may answer for its VIPs, and say so: vipctl node fence %s --is-off", name, name)
	}
	w, err := c.fleet.writer()
	if err != nil {
		return err
	}
	if err := w.FenceNode(c, name, ownership.Fence{By: c.operator(), Reason: c.flags.String("reason")}); err != nil {
		return err
	}
	return c.show(map[string]any{"node": name, "fenced": true}, func() string { return "node " + name + ": fenced; others take its VIPs\n" })
}

// vipJSON is a VIP with one owner in JSON.
type vipJSON struct {
	VIP   netip.Addr `json:"vip"`
	Hold  string     `json:"hold"`
	Owner string     `json:"owner,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	Why   string     `json:"why,omitempty"`
	// Ready are the nodes that could have it, Not the others with the reason of each.
	Ready []string          `json:"ready"`
	Not   map[string]string `json:"not,omitempty"`
}

// getVIPs lists the VIPs with one owner. One that has none is an error at the end.
func getVIPs(c *call) error {
	var without []string
	err := get(c, kind[vipJSON]{
		"vips", func(c *call, show func([]vipJSON) error) error {
			w, err := c.fleet.writer()
			if err != nil {
				return err
			}
			all, err := w.OwnedVIPs(c)
			if err != nil {
				return fmt.Errorf("reading who owns VIPs: %w", err)
			}
			for _, v := range all {
				if !v.Live {
					without = append(without, v.Addr.String())
				}
			}
			return show(mapped(all, vipToJSON))
		},
		func(v *vipJSON) string { return v.VIP.String() }, func(v *vipJSON, name string) bool { return v.VIP.String() == name }, vipsTable,
		func(c *call, all []vipJSON, name string) error {
			return absent("VIP with one owner", name, " in etcd", mapped(all, func(v vipJSON) string { return v.VIP.String() }))
		}, nil,
	})
	if name := c.argument(1); name != "" {
		without = slices.DeleteFunc(without, func(v string) bool { return v != name })
	}
	if err == nil && len(without) > 0 {
		return fmt.Errorf("nobody owns %s: vipctl get vips -o json says why each node can't", strings.Join(without, ", "))
	}
	return err
}

func vipToJSON(v etcd.OwnedVIP) vipJSON {
	out := vipJSON{VIP: v.Addr, Hold: "one", Ready: list(v.Ready), Not: v.Not}
	if v.Live {
		out.Owner, out.Since, out.Why = v.Owner.Node, &v.Owner.Since, v.Owner.Why
	}
	return out
}

func vipsTable(p *printer, vips []vipJSON) *table.Table {
	t := table.New(table.Column{Title: "VIP"}, table.Column{Title: "HOLD"}, table.Column{Title: "OWNER"}, table.Column{Title: "SINCE"},
		table.Column{Title: "WHY"}, table.Column{Title: "READY"})
	for _, v := range vips {
		owner, since := "-", ""
		if v.Owner != "" {
			owner, since = v.Owner, v.Since.Local().Format(time.DateTime)
		}
		t.Row(v.VIP.String(), v.Hold, owner, since, v.Why, p.few(v.Ready, 3))
	}
	return t
}
