package main

import (
	"fmt"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
)

func describeVerb() *verb {
	return &verb{
		name: "describe", args: "service|node NAME", brief: "everything about one service or node",
		about: "Shows one service: where it was read, the fields that are not at their default, its ports with what they " +
			"counted since the daemon started, its endpoints with configured and effective weight, health and override, " +
			"what their checks have found, its drains, frontends and problems.\n\n" +
			"In kernel modes bytes are there only where the kernel counts them (net.netfilter.nf_conntrack_acct).\n\n" +
			"With --etcd it is read from etcd: what is wanted of all hosts, without what each knows for itself. A node is " +
			"always read from etcd: what its vipd has told last.",
		example: "vipctl describe service web",
		formats: []string{formTable, formWide, formJSON, formTOML}, fleet: true,
		least: 2, most: 2,
		complete: func(c *call, before []string) []string {
			switch len(before) {
			case 0:
				return []string{"service", "node"}
			case 1:
				switch {
				case strings.HasPrefix(before[0], "node"):
					return c.nodeNames()
				case c.etcdNamed():
					return c.fleetNames()
				}
				return c.serviceNames()
			}
			return nil
		},
		run: runDescribe,
	}
}

func runDescribe(c *call) error {
	if c.args[0] == "node" || c.args[0] == "nodes" {
		return c.describeNode(c.args[1])
	}
	if c.args[0] != "service" && c.args[0] != "services" {
		return wrongUse("describe describes a service or a node, not %q; for example: %s", c.args[0], c.verb.example)
	}
	if c.etcdNamed() {
		return c.describeFleet(c.args[1])
	}
	client, err := c.daemon()
	if err != nil {
		return err
	}
	services, err := client.Services(c)
	if err != nil {
		return err
	}
	var names []string
	for i := range services {
		s := &services[i]
		if string(s.Name) == c.args[1] {
			return c.describe(s, false)
		}
		names = append(names, string(s.Name))
	}
	return c.notServed(client, c.args[1], names)
}

// describe prints a service. Wanted: it is as etcd has it, and nothing is known of how it runs.
func (c *call) describe(s *api.Service, wanted bool) error {
	switch c.format {
	case formJSON:
		return c.printJSON(s)
	case formTOML:
		return c.print(servicesTOML([]api.Service{*s}))
	}
	out := &sheet{label: 11}
	out.line("service", string(s.Name))
	out.line("origin", origin(s.Origin))
	out.text("vips", strings.Join(s.VIPs, ", "))
	label := "fields"
	for _, field := range definedFields(s.Definition) {
		if field == "vips" || field == "ports" || field == "endpoints" {
			continue
		}
		out.text(label, field+" = "+tomlValue(withoutSecrets(field, s.Definition[field]), ""))
		label = ""
	}
	if s.Check != nil {
		out.text("check", rulesText(s.Check))
	}
	c.problemText(out, s.Problems)
	if wanted {
		c.section(out, "ports", fleetPorts(s))
		c.section(out, "endpoints", fleetEndpointRows(s))
		c.section(out, "overrides", c.describedOverrides(s))
		return c.print(out.b.String())
	}
	c.section(out, "ports", describedPorts(s))
	c.section(out, "endpoints", c.describedEndpoints(s))
	c.section(out, "health", c.describedChecks(s))
	c.section(out, "overrides", c.describedOverrides(s))
	c.section(out, "drains", c.describedDrains(s))
	c.section(out, "frontends", c.describedFrontends(s))
	return c.print(out.b.String())
}

// section writes a table under its title; nothing where it has no rows.
func (c *call) section(out *sheet, title string, t *table.Table) {
	if t.Len() > 0 {
		fmt.Fprintf(&out.b, "\n%s\n%s", title, indented(t.Text(table.Form{Color: c.color, Width: c.room(2)})))
	}
}

func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

func describedPorts(s *api.Service) *table.Table {
	t := table.New(
		table.Column{Title: "NAME"}, table.Column{Title: "PORT"}, table.Column{Title: "TARGET"}, table.Column{Title: "NODEPORT"},
		table.Column{Title: "CONNECTIONS", Right: true}, table.Column{Title: "IN", Right: true}, table.Column{Title: "OUT", Right: true},
	)
	for _, p := range s.Ports {
		nodePort := ""
		if p.NodePort != 0 {
			nodePort = strconv.Itoa(int(p.NodePort))
		}
		in, out := "", "" // none, or they are not counted
		if p.In+p.Out > 0 {
			in, out = bytesText(p.In), bytesText(p.Out)
		}
		t.Row(p.Name, fmt.Sprintf("%d/%s", p.Port, p.Protocol), strconv.Itoa(int(p.TargetPort)), nodePort,
			strconv.FormatUint(p.Connections, 10), in, out)
	}
	return t
}

func (c *call) describedEndpoints(s *api.Service) *table.Table {
	t := table.New(
		table.Column{Title: "ADDRESS"}, table.Column{Title: "PORT"}, table.Column{Title: "SET", Right: true},
		table.Column{Title: "WEIGHT", Right: true}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "HEALTH", Style: stateStyle}, table.Column{Title: "ACTIVE", Right: true},
		table.Column{Title: "TOTAL", Right: true}, table.Column{Title: "AT"},
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

func (c *call) describedOverrides(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "OVERRIDE"})
	for _, e := range s.Endpoints {
		if e.Override != nil {
			t.Row(e.Address, c.override(e.Override))
		}
	}
	return t
}

func (c *call) describedDrains(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "LEFT", Right: true}, table.Column{Title: "CUT"})
	for _, e := range s.Endpoints {
		if e.State != balancer.Draining && e.State != balancer.Removed {
			continue
		}
		cut := "never"
		if !e.Until.IsZero() {
			cut = c.ahead(e.Until)
		}
		t.Row(e.Address, string(e.State), strconv.FormatUint(e.Active, 10), cut)
	}
	return t
}

func (c *call) describedFrontends(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "FRONTEND"}, table.Column{Title: "SCHEDULER"}, table.Column{Title: "UP", Style: upStyle},
		table.Column{Title: "STATE", Style: stateStyle}, table.Column{Title: "ERROR"})
	for _, f := range s.Frontends {
		t.Row(f.Key.String(), string(f.Scheduler), upBackends(f.Backends), f.State, f.Error)
	}
	return t
}
