package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/tomltext"
)

func describeVerb() *verb {
	return &verb{
		name: "describe", args: "service|node|vip NAME", brief: "everything about one service, node or VIP",
		about: "Shows one service: where it was read, how its VIPs are reached, fields that are not at their default, ports with their counters since the " +
			"daemon started, endpoints with configured and effective weight, health and override, results of checks, drains, " +
			"frontends and problems.\n\n" +
			"In kernel modes bytes are shown only where the kernel counts them (net.netfilter.nf_conntrack_acct).\n\n" +
			"With --etcd it is read from etcd: the definition for all hosts, without what only a host knows. A node is always " +
			"read from etcd: the status that its vipd wrote last. So is a VIP that has one owner (hold = \"one\"): its owner, which hosts " +
			"confirm that one (on the owner: how long ago), which could have the VIP, best first, and its last ten owners, as far as etcd remembers.",
		example: "vipctl describe service web",
		formats: []string{formTable, formWide, formJSON, formTOML}, fleet: true,
		least: 2, most: 2,
		complete: inTurn(oneOf("service", "node", "vip"), namesToList),
		kinds:    true,
		run:      runDescribe,
	}
}

func runDescribe(c *call) error {
	name := c.args[1]
	switch strings.TrimSuffix(c.args[0], "s") {
	case "node":
		return c.describeNode(name)
	case "vip":
		return c.describeVIP(name)
	case "service":
	default:
		return wrongUse("describe describes a service, a node or a VIP, not %q; for example: %s", c.args[0], c.verb.example)
	}
	if c.fleetWide {
		return c.describeFleet(name)
	}
	services, err := askDaemon(c, (*api.Client).Services)
	if err != nil {
		return err
	}
	s := serviceIn(services, name)
	if s == nil {
		return c.notServed(name, services)
	}
	status, err := askDaemon(c, (*api.Client).Status)
	if err != nil {
		return err
	}
	return c.describe(&described{Service: s, Addresses: slices.DeleteFunc(status.Addresses, func(a api.Address) bool {
		return !slices.Contains(s.VIPs, a.Address)
	})})
}

// described is a service and how its VIPs are reached on this host.
type described struct {
	*api.Service
	Addresses []api.Address `json:"addresses,omitempty"`
}

func serviceIn(services []api.Service, name string) *api.Service {
	for i := range services {
		if string(services[i].Name) == name {
			return &services[i]
		}
	}
	return nil
}

// describe prints a service; one of a fleet as etcd has it, without what only a host knows.
func (p *printer) describe(s *described) error {
	if p.format == formTOML {
		return p.print(servicesTOML([]api.Service{*s.Service}))
	}
	return p.show(s, func() string { return p.serviceText(s) })
}

func (p *printer) serviceText(d *described) string {
	s, out := d.Service, &sheet{printer: p}
	out.line("service", string(s.Name))
	out.line("origin", origin(s.Origin))
	out.text("vips", strings.Join(s.VIPs, ", "))
	for _, a := range d.Addresses {
		out.text("", a.Address+" is "+reached(a))
	}
	if len(s.Withdrawn) > 0 {
		out.text("withdrawn", strings.Join(s.Withdrawn, ", ")+": no endpoint is usable, or this host is on standby")
	}
	label := "fields"
	for _, field := range tomltext.Fields(s.Definition) {
		if field == "vips" || field == "ports" || field == "endpoints" {
			continue
		}
		out.text(label, field+" = "+tomltext.Value(withoutSecrets(field, s.Definition[field]), ""))
		label = ""
	}
	if s.Check != nil {
		out.text("check", rulesText(s.Check))
	}
	out.problems(s.Problems)
	out.section("ports", p.describedPorts(s))
	out.section("endpoints", p.describedEndpoints(s))
	if !p.fleetWide {
		out.section("health", p.describedChecks(s))
	}
	out.section("overrides", p.describedOverrides(s))
	if !p.fleetWide {
		out.section("drains", p.describedDrains(s))
		out.section("frontends", describedFrontends(s))
	}
	return out.b.String()
}

// reached says which way leads to a VIP on this host.
func reached(a api.Address) string {
	text := heldText(a)
	switch addr, err := netip.ParseAddr(a.Address); {
	case err == nil && addr.IsLoopback():
		text = "on loopback: reached by this host alone"
	case a.Held == "host", a.Held == "none", a.Held == "":
	case a.Held == "lo", strings.HasPrefix(a.Held, "vipd"):
		text += ": reached by this host, and by others where a route leads here"
	default:
		text += ": this host answers ARP or NDP for it"
	}
	if a.Note != "" {
		text += "; " + oneLine(a.Note)
	}
	return text
}

func (p *printer) describedPorts(s *api.Service) *table.Table {
	fleet := p.fleetWide
	t := table.New(
		table.Column{Title: "NAME"}, table.Column{Title: "PORT"}, table.Column{Title: "TARGET"}, table.Column{Title: "NODEPORT"},
		table.Column{Title: "CONNECTIONS", Right: true, Skip: fleet}, table.Column{Title: "IN", Right: true, Skip: fleet}, table.Column{Title: "OUT", Right: true, Skip: fleet},
	)
	for _, p := range s.Ports {
		in, out := transferred(p.In, p.Out)
		t.Row(p.Name, fmt.Sprintf("%d/%s", p.Port, p.Protocol), strconv.Itoa(int(p.TargetPort)), number(int(p.NodePort)),
			strconv.FormatUint(p.Connections, 10), in, out)
	}
	return t
}

func (p *printer) describedEndpoints(s *api.Service) *table.Table {
	fleet := p.fleetWide
	t := table.New(
		table.Column{Title: "ADDRESS"}, table.Column{Title: "PORT"}, table.Column{Title: "SET", Right: true},
		table.Column{Title: "WEIGHT", Right: true}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "HEALTH", Style: stateStyle, Skip: fleet}, table.Column{Title: "ACTIVE", Right: true, Skip: fleet},
		table.Column{Title: "TOTAL", Right: true, Skip: fleet}, table.Column{Title: "AT"},
	)
	weight := weights(s.Endpoints)
	for i, e := range s.Endpoints {
		t.Row(e.Address, e.Port, strconv.Itoa(e.Configured), weight[i], string(e.State), string(e.Health),
			strconv.FormatUint(e.Active, 10), strconv.FormatUint(e.Connections, 10), placed(&e))
	}
	return t
}

// placed says where an endpoint is, and whether it is a backup.
func placed(e *api.Endpoint) string {
	at := strings.Trim(e.Node+"/"+e.Zone, "/")
	if e.Backup {
		at = strings.TrimSpace(at + " backup")
	}
	return at
}

func (p *printer) describedOverrides(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "OVERRIDE"})
	for _, e := range s.Endpoints {
		if e.Override != nil {
			t.Row(e.Address, p.override(e.Override))
		}
	}
	return t
}

func (p *printer) describedDrains(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "LEFT", Right: true}, table.Column{Title: "CUT"})
	for _, e := range s.Endpoints {
		if e.State != balancer.Draining && e.State != balancer.Removed {
			continue
		}
		cut := "never"
		if !e.Until.IsZero() {
			cut = p.when(e.Until)
		}
		t.Row(e.Address, string(e.State), strconv.FormatUint(e.Active, 10), cut)
	}
	return t
}

func describedFrontends(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "FRONTEND"}, table.Column{Title: "SCHEDULER"}, table.Column{Title: "UP", Style: upStyle},
		table.Column{Title: "STATE", Style: stateStyle}, table.Column{Title: "ERROR"})
	for _, f := range s.Frontends {
		t.Row(f.Key.String(), string(f.Scheduler), upBackends(f.Backends), f.State, f.Error)
	}
	return t
}
