package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/tomltext"
	"vipd/cmd/internal/wording"
	"vipd/dataplane/probe"
	"vipd/store/etcd/schema"
)

func describeVerb() *cli.Verb {
	return &cli.Verb{
		Name: "describe", Args: "[service|node|vip] NAME", Brief: "show everything about one service, node or VIP",
		About: `Without a kind, an address is a VIP. Any other name is a service, a node, or a
DNS name of endpoints, whose current addresses are shown.

For a service, it shows the place of the definition, how its VIPs are reached,
fields with values other than the default, ports with their counters since the
daemon started, endpoints with their configured and effective weights, health
and overrides, check results, drains, frontends and problems. In the kernel
modes, bytes are shown only if the kernel counts them
(net.netfilter.nf_conntrack_acct).

With --etcd, it shows the service's definition in etcd, without the state of a
host. A node is always read from etcd: it shows the last status that the
node's vipd wrote.

A VIP with one owner (hold = "one") is also read from etcd. It shows the
owner, the hosts that confirm this owner, the hosts that could own the VIP,
best first, and the last ten owners. If VRRP decides, it is read from this
host: the state of its group, other routers' adverts, and the last ten changes
here.`,
		Example: "vipctl describe service web",
		Formats: []string{cli.FormTable, cli.FormWide, cli.FormJSON, cli.FormTOML}, Fleet: true,
		MinArgs: 1, MaxArgs: 2,
		Complete: cli.InTurn(cli.OneOf("service", "node", "vip"), namesToList),
		SpellOut: withKind,
		Run:      runDescribe,
	}
}

func runDescribe(c *cli.Call) error {
	kind, name := "", c.Args[len(c.Args)-1]
	if len(c.Args) > 1 {
		kind = c.Args[0]
	} else {
		kind = kindOf(c, name)
	}
	switch strings.TrimSuffix(kind, "s") {
	case "node":
		return describeNode(c, name)
	case "vip":
		return describeVIP(c, name)
	case "service":
	default:
		return cli.WrongUse("\"vipctl describe\" shows a service, a node or a VIP, not %q; for example: %s", kind, c.Verb.Example)
	}
	if c.FleetWide {
		return describeFleet(c, name)
	}
	services, err := cli.AskDaemon(c, accepted)
	if err != nil {
		return err
	}
	s := serviceIn(services, name)
	if s == nil {
		if n := findName(name, services); n != nil && c.Format != cli.FormTOML {
			return c.Show(n, func() string { return nameText(c.Printer, n) })
		}
		return notServed(c, name, services)
	}
	status, err := cli.AskDaemon(c, (*api.Client).Status)
	if err != nil {
		return err
	}
	return describe(c.Printer, &described{Service: s, Addresses: slices.DeleteFunc(status.Addresses, func(a api.Address) bool {
		return !slices.Contains(s.VIPs, a.Address)
	})})
}

// kindOf returns the kind of object that a name refers to. An address is a VIP. A name refers to a
// node only if one of the fleet's nodes has that name and no service has it.
func kindOf(c *cli.Call, name string) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return "vip"
	}
	if c.FleetWide || !c.StoresInEtcd() {
		return "service"
	}
	if services, err := cli.AskDaemon(c, accepted); err != nil || serviceIn(services, name) != nil {
		return "service"
	}
	all, err := cli.AskEtcd(c, nodeViews)
	if err == nil && slices.ContainsFunc(all, func(n nodeView) bool { return n.Node == name }) {
		return "node"
	}
	return "service"
}

// described is a service with the state of its VIPs on this host.
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

// describe prints a service. For a service in etcd, it omits details that only a host knows.
func describe(p *cli.Printer, s *described) error {
	if p.Format == cli.FormTOML {
		return p.Print(servicesTOML([]api.Service{*s.Service}))
	}
	return p.Show(s, func() string { return describeService(p, s) })
}

func describeService(p *cli.Printer, d *described) string {
	s, out := d.Service, &sheet{Printer: p}
	out.line("service", string(s.Name))
	out.line("origin", s.Origin.Text())
	out.text("vips", strings.Join(s.VIPs, ", "))
	for _, a := range d.Addresses {
		out.text("", a.Address+" is "+pathText(a))
	}
	if len(s.Withdrawn) > 0 {
		out.text("withdrawn", strings.Join(s.Withdrawn, ", ")+": no endpoint is usable, or this host is on standby")
	}
	label, definition := "fields", probe.WithoutSecrets(s.Definition)
	for _, field := range tomltext.Fields(definition) {
		if field == "vips" || field == "ports" || field == "endpoints" {
			continue
		}
		out.text(label, field+" = "+tomltext.Value(definition[field], ""))
		label = ""
	}
	switch {
	case len(s.Checks) > 0:
		label = "checks"
		for i := range s.Checks {
			out.text(label, rulesText(&s.Checks[i]))
			label = ""
		}
		out.text("", fmt.Sprintf("an endpoint is up if it passes %s of them", s.Checks[0].Need))
	case s.Check != nil:
		out.text("check", rulesText(s.Check))
	}
	label = "lookups"
	for _, l := range s.Lookups {
		out.text(label, lookupText(p, &l))
		label = ""
	}
	out.problems(s.Problems)
	out.section("ports", describedPorts(p, s))
	out.section("endpoints", describedEndpoints(p, s))
	if !p.FleetWide {
		out.section("health", describedChecks(p, s))
	}
	out.section("overrides", describedOverrides(p, s))
	if !p.FleetWide {
		out.section("drains", describedDrains(p, s))
		out.section("frontends", describedFrontends(s))
	}
	return out.b.String()
}

// lookupText describes a lookup and its latest answer. It omits the answer for a service in etcd,
// because only hosts look up names.
func lookupText(p *cli.Printer, l *api.Lookup) string {
	text := map[balancer.LookupKind]string{
		balancer.HostLookup: "addresses of ", balancer.ServiceLookup: "SRV records of ", balancer.ProgramLookup: "output of ",
	}[l.Kind] + l.Name
	switch {
	case p.FleetWide:
		return text
	case l.Failure != "":
		return fmt.Sprintf("%s: %s in use; the last attempt failed: %s", text, wording.Count(l.Endpoints, "endpoint"), l.Failure)
	}
	return fmt.Sprintf("%s: %s", text, wording.Count(l.Endpoints, "endpoint"))
}

// pathText describes how packets to a VIP reach this host.
func pathText(a api.Address) string {
	text := heldText(a)
	switch addr, err := netip.ParseAddr(a.Address); {
	case err == nil && addr.IsLoopback():
		text = "on loopback: only this host can reach it"
	case a.Silent:
		text += ": this host is a real server: a gateway forwards clients' packets here, and programs on this host answer the clients"
	case a.Held == "host", a.Held == "none", a.Held == "":
	case a.Held == "lo", strings.HasPrefix(a.Held, "vipd"):
		text += ": this host can reach it, and so can other hosts that have a route to it"
	default:
		text += ": this host answers ARP or NDP for it"
	}
	if a.Note != "" {
		text += "; " + cli.OneLine(a.Note)
	}
	return text
}

// describedName is a DNS name with the lookups that resolve it and the endpoints found under it.
type describedName struct {
	Name      string         `json:"name"`
	Lookups   []namedLookup  `json:"lookups"`
	Endpoints []api.Endpoint `json:"endpoints"`
}

type namedLookup struct {
	Service balancer.Name `json:"service"`
	api.Lookup
}

// findName returns the description of a DNS name, or nil if no service uses it.
func findName(text string, services []api.Service) *describedName {
	n := &describedName{Name: lookup.HostName(text), Lookups: []namedLookup{}, Endpoints: []api.Endpoint{}}
	if n.Name == "" {
		return nil
	}
	for _, s := range services {
		for _, l := range s.Lookups {
			if lookup.HostName(l.Name) == n.Name {
				n.Lookups = append(n.Lookups, namedLookup{s.Name, l})
			}
		}
		for _, e := range s.Endpoints {
			if lookup.HostName(e.Name) == n.Name {
				n.Endpoints = append(n.Endpoints, e)
			}
		}
	}
	if len(n.Lookups)+len(n.Endpoints) == 0 {
		return nil
	}
	return n
}

func nameText(p *cli.Printer, n *describedName) string {
	out := &sheet{Printer: p}
	out.line("name", n.Name)
	label := "lookups"
	for _, l := range n.Lookups {
		out.text(label, string(l.Service)+": "+lookupText(p, &l.Lookup))
		label = ""
	}
	out.section("endpoints", endpointsTable(p, n.Endpoints))
	return out.b.String()
}

func describedPorts(p *cli.Printer, s *api.Service) *table.Table {
	fleet := p.FleetWide
	t := table.New(
		table.Column{Title: "NAME"}, table.Column{Title: "PORT"}, table.Column{Title: "TARGET"}, table.Column{Title: "NODEPORT"},
		table.Column{Title: "UP", Style: upStyle, Skip: fleet}, table.Column{Title: "CONNECTIONS", Right: true, Skip: fleet}, table.Column{Title: "IN", Right: true, Skip: fleet}, table.Column{Title: "OUT", Right: true, Skip: fleet},
	)
	for _, p := range s.Ports {
		in, out := transferred(p.In, p.Out)
		t.Row(p.Name, fmt.Sprintf("%s/%s", p.Port, p.Protocol), p.TargetPort.String(), number(int(p.NodePort)),
			fmt.Sprintf("%d/%d", p.Up, p.Of), strconv.FormatUint(p.Connections, 10), in, out)
	}
	return t
}

func describedEndpoints(p *cli.Printer, s *api.Service) *table.Table {
	fleet := p.FleetWide
	t := table.New(
		table.Column{Title: "ADDRESS"}, table.Column{Title: "PORT"}, table.Column{Title: "SET", Right: true},
		table.Column{Title: "WEIGHT", Right: true}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "HEALTH", Style: stateStyle, Skip: fleet}, table.Column{Title: "ACTIVE", Right: true, Skip: fleet},
		table.Column{Title: "TOTAL", Right: true, Skip: fleet},
		table.Column{Title: "UNANSWERED", Right: true, Style: badCount, Skip: !slices.ContainsFunc(s.Endpoints, func(e api.Endpoint) bool { return e.Unanswered > 0 })},
		table.Column{Title: "AT"},
	)
	weight := weights(s.Endpoints)
	for i, e := range s.Endpoints {
		t.Row(e.Place(), e.Port, strconv.Itoa(e.Configured), weight[i], string(e.State), string(e.Health),
			strconv.FormatUint(e.Active, 10), strconv.FormatUint(e.Connections, 10), strconv.FormatUint(e.Unanswered, 10), placeText(&e))
	}
	return t
}

// placeText returns an endpoint's node and zone, whether it is a backup, and its name.
func placeText(e *api.Endpoint) string {
	at := strings.Trim(e.Node+"/"+e.Zone, "/")
	if e.Backup {
		at += " backup"
	}
	return strings.TrimSpace(at + " " + e.Name)
}

func describedOverrides(p *cli.Printer, s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "OVERRIDE"})
	for _, e := range s.Endpoints {
		if e.Override != nil {
			t.Row(e.Place(), override(p, e.Override))
		}
	}
	return t
}

func describedDrains(p *cli.Printer, s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "LEFT", Right: true}, table.Column{Title: "CUT"})
	for _, e := range s.Endpoints {
		if e.State != balancer.Draining && e.State != balancer.Removed {
			continue
		}
		cut := "never"
		if !e.Until.IsZero() {
			cut = when(p, e.Until)
		}
		t.Row(e.Place(), string(e.State), strconv.FormatUint(e.Active, 10), cut)
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

func describeNode(c *cli.Call, name string) error {
	if c.Format == cli.FormTOML {
		return cli.WrongUse("-o toml prints definitions, which nodes don't have")
	}
	all, err := cli.AskEtcd(c, nodeViews)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(n nodeView) bool { return n.Node == name })
	if i < 0 {
		return nodes().absentIn(all, name)
	}
	return c.Show(all[i], func() string { return nodeText(c.Printer, &all[i]) })
}

func nodeText(p *cli.Printer, n *nodeView) string {
	out := &sheet{Printer: p}
	out.line("node", n.Node)
	out.text("config", cmp.Or(configText(n.Config), "nothing is set in etcd"))
	for _, problem := range n.Problems {
		out.text("", problem.String())
	}
	switch {
	case !n.Here:
		out.text("state", "gone: no vipd with this name is running, or it can't reach etcd")
		return out.b.String()
	case n.Status == nil:
		out.text("state", "starting: it has no status yet")
		return out.b.String()
	}
	s := n.Status
	out.text("vipd", fmt.Sprintf("%s, started %s", s.Version, ago(p, n.Live.Started)))
	out.text("zone", s.Zone)
	out.mode(s.Mode, s.Wanted, s.Why, s.Fallback)
	out.nodeSync(n)
	out.text("serving", fmt.Sprintf("%s, %s, %s", wording.Count(s.Services, "service"), wording.Count(s.Frontends, "frontend"), wording.Count(s.Endpoints, "endpoint")))
	out.nodeProblems(s)
	t := table.New(table.Column{Title: "SERVICE"}, table.Column{Title: "ADDRESS"}, table.Column{Title: "CONNECTIONS", Right: true})
	for _, d := range s.Drains {
		t.Row(string(d.Service), d.Address, strconv.FormatUint(d.Active, 10))
	}
	if s.DrainsOmitted > 0 {
		t.Row("...", fmt.Sprintf("and %d more", s.DrainsOmitted), "")
	}
	out.section("drains", t)
	return out.b.String()
}

func (out *sheet) nodeSync(n *nodeView) {
	s := n.Status
	text := fmt.Sprintf("revision %d is applied", s.Revision)
	if n.Behind != nil && *n.Behind > 0 {
		text += fmt.Sprintf(", %d is the newest", s.Revision+*n.Behind)
	}
	if !s.Ready {
		text += "; the initial state is not complete yet"
	}
	out.text("sync", text)
	if s.Pending > 0 || s.Failing > 0 {
		out.text("", fmt.Sprintf("%s pending, %d failing", wording.Count(s.Pending, "frontend"), s.Failing))
	}
	if !s.At.IsZero() {
		out.text("", "last report "+ago(out.Printer, s.At))
	}
}

func (out *sheet) nodeProblems(s *schema.NodeStatus) {
	if s.ProblemCount == 0 {
		out.line("problems", "none")
		return
	}
	label := "problems"
	for _, p := range s.Problems {
		out.text(label, p)
		label = ""
	}
	if more := s.ProblemCount - len(s.Problems); more > 0 {
		out.text(label, fmt.Sprintf("and %d more: \"vipctl status\" on that host lists them", more))
	}
}
