package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer/failover"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
	"vipd/store/etcd"
)

func describeVIP(c *cli.Call, name string) error {
	if c.Format == cli.FormTOML {
		return cli.WrongUse("-o toml prints definitions; \"vipctl export\" prints VIPs' settings")
	}
	all, err := someVIPs(c)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(v ownedVIP) bool { return v.name() == name })
	if i < 0 {
		return vips(c).absentIn(all, name)
	}
	v := &all[i]
	if c.OwnsByVRRP() {
		return c.Show(v, func() string { return vrrpText(c.Printer, v) })
	}
	if s, err := cli.AskDaemon(c, (*api.Client).Status); err == nil && s.Node == v.Owner {
		v.Confirmed = s.Confirmed
	}
	const maxOwners = 10
	v.Last, err = cli.AskEtcd(c, func(w *etcd.Store, ctx context.Context) ([]failover.Owner, error) {
		return w.LastOwners(ctx, v.VIP, maxOwners)
	})
	if err != nil {
		return fmt.Errorf("reading the last owners: %w", err)
	}
	return c.Show(v, func() string { return vipText(c.Printer, v) })
}

func vipText(p *cli.Printer, v *ownedVIP) string {
	out := &sheet{Printer: p}
	out.line("vip", v.VIP.String())
	policy := "one owner, require " + string(v.Require)
	if len(v.Prefer) > 0 {
		policy += ", prefer " + strings.Join(v.Prefer, ", ")
	}
	if v.Group != "" {
		policy += ", group " + v.Group
	}
	out.text("policy", policy)
	out.text("services", cmp.Or(strings.Join(v.Services, ", "), "none in etcd"))
	if v.Owner == "" {
		out.painted("owner", "none", table.Bad)
	} else {
		out.text("owner", fmt.Sprintf("%s, since %s (%s)", v.Owner, ago(p, *v.Since), v.Why))
		out.text("session", v.Session+", which is confirmed by "+v.jury())
	}
	if m := v.Move; m != nil {
		out.text("move", fmt.Sprintf("to %s, requested by %s", cmp.Or(m.To, "the best host"), cmp.Or(m.By, "an operator")))
	}
	t := table.New(table.Column{Title: "NODE"}, table.Column{Title: "COULD OWN IT"})
	for _, node := range v.Ready {
		t.Row(node, "yes")
	}
	for _, node := range slices.Sorted(maps.Keys(v.Not)) {
		t.Row(node, "no: "+v.Not[node])
	}
	out.section("nodes", t)
	t = table.New(table.Column{Title: "SINCE"}, table.Column{Title: "OWNER"}, table.Column{Title: "WHY"})
	for _, o := range v.Last {
		t.Row(o.Since.Local().Format(time.DateTime), o.Node, o.Why)
	}
	out.section("last moves", t)
	return out.b.String()
}

// jury lists the nodes that confirm the owner and, if this host is the owner, their confirmations'
// ages.
func (v *ownedVIP) jury() string {
	var all []string
	for _, node := range v.Jury {
		age, known := v.Confirmed[node]
		switch {
		case node == v.Owner:
			continue
		case known && age < 0:
			node += " (never yet)"
		case known:
			node += fmt.Sprintf(" (%.2fs ago)", age)
		}
		all = append(all, node)
	}
	text := cmp.Or(strings.Join(all, ", "), "etcd only")
	if v.Confirmed == nil && len(all) > 0 {
		text += "; to see when they last confirmed it, run this command on " + v.Owner
	}
	return text
}
