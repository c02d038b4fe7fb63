package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/find"
	"vipd/cmd/internal/table"
)

func getVerb() *verb {
	return &verb{
		name: "get", args: "services|endpoints|frontends|nodes|pools [NAME]", brief: "list services, endpoints, frontends, nodes or pools",
		about: "Lists what the daemon has: services as written, their endpoints as they work, or the frontends that were " +
			"compiled from them. NAME is a service; for frontends also a key such as 10.96.0.10:80/tcp. With -w the list " +
			"is shown again with each change.\n\n" +
			"-o wide adds columns. -o json prints the API's JSON, always a list. -o toml (services) prints definitions " +
			"that can be saved as a services file. -o name prints a name a line: web, web/192.168.1.11:8080 or " +
			"10.96.0.10:80/tcp.\n\n" +
			"With --etcd services and endpoints are read from etcd: what is wanted of all hosts, without what each knows for " +
			"itself. Frontends are always the daemon's, nodes and pools are always in etcd. Of each node it shows the mode in " +
			"use (with ! where that is a fallback), the revision of etcd that is in the kernel, how many revisions that is " +
			"behind the newest, and how long its vipd has been running. A node that is gone is listed as long as it is " +
			"configured in etcd.",
		example: "vipctl get endpoints web -o wide",
		flags: []cli.Flag{
			watchFlag(),
			&cli.BoolFlag{Name: "down", Usage: "endpoints: only those that are down, or get no new connections for another reason than that others come first"},
		},
		formats: []string{formTable, formWide, formJSON, formTOML, formName}, fleet: true,
		least: 1, most: 2,
		complete: func(c *call, before []string) []string {
			switch len(before) {
			case 0:
				return []string{"services", "endpoints", "frontends", "nodes", "pools"}
			case 1:
				switch {
				case strings.HasPrefix(before[0], "pool"):
					return c.poolNames()
				case strings.HasPrefix(before[0], "node"):
					return c.nodeNames()
				case c.etcdNamed():
					return c.fleetNames()
				}
				return c.serviceNames()
			}
			return nil
		},
		run: runGet,
	}
}

// kind is something that get lists.
type kind[T any] struct {
	// plural is its name, also in the API's path.
	plural string
	ask    func(*api.Client, context.Context) ([]T, error)
	// id is what -o name prints; named reports whether NAME means this one.
	id    func(*T) string
	named func(*T, string) bool
	table func(*call, []T) *table.Table
}

func runGet(c *call) error {
	what, err := c.kindName()
	if err != nil {
		return err
	}
	switch what {
	case "pools":
		return c.getPools(c.nameArgument())
	case "nodes":
		return c.getNodes(c.nameArgument())
	}
	if name := c.nameArgument(); c.etcdNamed() && what != "frontends" {
		return getFleet(c, what, name)
	}
	switch what {
	case "services":
		return get(c, kind[api.Service]{what, (*api.Client).Services, serviceID, serviceNamed, servicesTable})
	case "endpoints":
		return get(c, kind[api.Endpoint]{what, (*api.Client).Endpoints, endpointID, endpointNamed, endpointsTable})
	}
	return get(c, kind[api.Frontend]{what, (*api.Client).Frontends, frontendID, frontendNamed, frontendsTable})
}

// kindName reads the first argument, in the singular or plural.
func (c *call) kindName() (string, error) {
	kinds := []string{"services", "endpoints", "frontends", "nodes", "pools"}
	what := strings.TrimSuffix(c.args[0], "s") + "s"
	switch {
	case !slices.Contains(kinds, what):
		return "", wrongUse("get lists %s, not %q%s", choices(kinds), c.args[0], find.Meant(c.args[0], kinds))
	case c.format == formTOML && what != "services":
		return "", wrongUse("-o toml prints definitions, and %s have none; \"vipctl get services -o toml\" has them", what)
	case c.flags.Bool("down") && (what != "endpoints" || c.etcdNamed()):
		return "", wrongUse("--down is for the endpoints that this host's vipd knows: vipctl get endpoints --down")
	case what == "pools" && c.flags.Bool("watch"):
		return "", wrongUse("pools are not followed: leave -w out")
	}
	return what, nil
}

// nameArgument is NAME; "" where it is left out.
func (c *call) nameArgument() string {
	if len(c.args) > 1 {
		return c.args[1]
	}
	return ""
}

// get lists one kind, once or again with each change.
func get[T any](c *call, k kind[T]) error {
	name := c.nameArgument()
	if c.flags.Bool("watch") {
		return c.follow(k.plural, func(answer json.RawMessage) error {
			all, err := readAnswer[[]T](answer)
			if err != nil {
				return err
			}
			return show(c, k, shown(c, narrow(k, all, name)), name)
		})
	}
	client, err := c.daemon()
	if err != nil {
		return err
	}
	all, err := k.ask(client, c)
	if err != nil {
		return err
	}
	some := narrow(k, all, name)
	if name != "" && len(some) == 0 {
		if err := c.isService(client, name); err != nil {
			return err
		}
	}
	return show(c, k, shown(c, some), name)
}

// shown leaves out what --down does: endpoints that get new connections, or would if no others came first.
func shown[T any](c *call, all []T) []T {
	if !c.flags.Bool("down") {
		return all
	}
	return slices.DeleteFunc(all, func(t T) bool {
		e, _ := any(t).(api.Endpoint)
		switch e.State {
		case balancer.Active, balancer.Standby, balancer.Remote:
			return e.Health != balancer.HealthDown
		}
		return false
	})
}

func narrow[T any](k kind[T], all []T, name string) []T {
	some := []T{}
	for i := range all {
		if name == "" || k.named(&all[i], name) {
			some = append(some, all[i])
		}
	}
	return some
}

func show[T any](c *call, k kind[T], some []T, name string) error {
	switch c.format {
	case formJSON:
		return c.printJSON(some)
	case formName:
		var b strings.Builder
		for i := range some {
			fmt.Fprintln(&b, k.id(&some[i]))
		}
		return c.print(b.String())
	case formTOML:
		services, _ := any(some).([]api.Service)
		return c.print(servicesTOML(services))
	}
	empty := "there are no " + k.plural
	if name != "" {
		empty = fmt.Sprintf("%s has no %s", name, k.plural)
	}
	if c.flags.Bool("down") {
		empty += " that are down or taken out"
	}
	return c.printTable(k.table(c, some), empty)
}

// isService returns an error that names what is near, unless the daemon has the service.
func (c *call) isService(client *api.Client, name string) error {
	services, err := client.Services(c)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range services {
		if string(s.Name) == name {
			return nil
		}
		names = append(names, string(s.Name))
	}
	return c.notServed(client, name, names)
}

// notServed says why there is no service of this name: it has a mistake and none served before, or there are others only.
func (c *call) notServed(client *api.Client, name string, names []string) error {
	if s, err := client.Status(c); err == nil {
		for _, p := range s.Problems {
			if string(p.Service) == name && p.Severity == balancer.SeverityError {
				return fmt.Errorf("service %q is not served: %s", name, p)
			}
		}
	}
	return fmt.Errorf("there is no service %q%s", name, find.Meant(name, names))
}

func serviceID(s *api.Service) string               { return string(s.Name) }
func serviceNamed(s *api.Service, name string) bool { return string(s.Name) == name }

func endpointID(e *api.Endpoint) string { return string(e.Service) + "/" + e.Address }

func endpointNamed(e *api.Endpoint, name string) bool {
	service, address, _ := strings.Cut(name, "/")
	return string(e.Service) == service && (address == "" || isAt(e.Address, address))
}

func frontendID(f *api.Frontend) string { return f.Key.String() }

func frontendNamed(f *api.Frontend, name string) bool {
	key, err := balancer.ParseKey(name)
	return string(f.Service) == name || err == nil && f.Key == key
}

func servicesTable(c *call, services []api.Service) *table.Table {
	t := table.New(
		table.Column{Title: "NAME"}, table.Column{Title: "VIPS"}, table.Column{Title: "PORTS"},
		table.Column{Title: "UP", Style: upStyle}, table.Column{Title: "PROBLEMS", Style: problemStyle},
		table.Column{Title: "SCHEDULER", Wide: true}, table.Column{Title: "CONNECTIONS", Wide: true, Right: true},
		table.Column{Title: "ORIGIN", Wide: true},
	)
	for i := range services {
		s := &services[i]
		var ports []string
		var connections uint64
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
			connections += p.Connections
		}
		vips, shown := few(s.VIPs, 1), few(ports, 3)
		if c.format == formWide {
			vips, shown = strings.Join(s.VIPs, ","), strings.Join(ports, ",")
		}
		t.Row(string(s.Name), vips, shown, up(s.Endpoints), problemCount(s.Problems),
			fieldText(s.Definition, "scheduler", string(balancer.WeightedRoundRobin)), strconv.FormatUint(connections, 10),
			origin(s.Origin))
	}
	return t
}

func fieldText(definition map[string]any, field, otherwise string) string {
	if v, ok := definition[field]; ok {
		return fmt.Sprint(v)
	}
	return otherwise
}

// few lists the first n of list, and how many more there are.
func few(list []string, n int) string {
	if len(list) <= n+1 && n > 1 || len(list) <= n {
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s +%d", strings.Join(list[:n], ","), len(list)-n)
}

// up writes how many endpoints get new connections, of how many: at the port that is worst off.
func up(endpoints []api.Endpoint) string {
	type tally struct{ active, all int }
	ports := map[string]tally{}
	for _, e := range endpoints {
		if e.State == balancer.Removed {
			continue
		}
		p := ports[e.Port]
		p.all++
		if e.State == balancer.Active {
			p.active++
		}
		ports[e.Port] = p
	}
	worst, first := tally{}, true
	for _, p := range ports {
		if first || p.active < worst.active || p.active == worst.active && p.all > worst.all {
			worst, first = p, false
		}
	}
	return fmt.Sprintf("%d/%d", worst.active, worst.all)
}

func upStyle(text string) table.Style {
	active, all, _ := strings.Cut(text, "/")
	switch active {
	case "0":
		return table.Bad
	case all:
		return table.Good
	}
	return table.Notice
}

func problemCount(problems []balancer.Problem) string {
	if len(problems) == 0 {
		return ""
	}
	return strconv.Itoa(len(problems))
}

func problemStyle(text string) table.Style {
	if text == "-" {
		return table.Plain
	}
	return table.Bad
}

func endpointsTable(c *call, endpoints []api.Endpoint) *table.Table {
	// An endpoint may serve two ports of its service at one address: then only the ports' names tell the rows apart.
	seen := map[[2]string]bool{}
	distinct := !slices.ContainsFunc(endpoints, func(e api.Endpoint) bool {
		row := [2]string{string(e.Service), e.Address}
		again := seen[row]
		seen[row] = true
		return again
	})
	t := table.New(
		table.Column{Title: "SERVICE"}, table.Column{Title: "PORT", Wide: distinct}, table.Column{Title: "ADDRESS"},
		table.Column{Title: "WEIGHT", Right: true}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "HEALTH", Style: healthStyle}, table.Column{Title: "ACTIVE", Right: true}, table.Column{Title: "WHY", Wide: true},
		table.Column{Title: "LAST RESULT", Wide: true}, table.Column{Title: "NEXT", Wide: true},
		table.Column{Title: "CONFIGURED", Wide: true, Right: true}, table.Column{Title: "CONNECTIONS", Wide: true, Right: true},
		table.Column{Title: "NODE", Wide: true}, table.Column{Title: "ZONE", Wide: true}, table.Column{Title: "BACKUP", Wide: true},
		table.Column{Title: "OVERRIDE", Wide: true},
	)
	weight := weights(endpoints)
	for i := range endpoints {
		e := &endpoints[i]
		t.Row(string(e.Service), e.Port, e.Address, weight[i], string(e.State), c.health(e), strconv.FormatUint(e.Active, 10), why(e),
			c.lastResult(e.Check), c.nextCheck(e.Check), strconv.Itoa(e.Configured), strconv.FormatUint(e.Connections, 10),
			e.Node, e.Zone, yesIf(e.Backup), c.override(e.Override))
	}
	return t
}

func frontendsTable(_ *call, frontends []api.Frontend) *table.Table {
	t := table.New(
		table.Column{Title: "FRONTEND"}, table.Column{Title: "SERVICE"}, table.Column{Title: "PORT"},
		table.Column{Title: "SCHEDULER"}, table.Column{Title: "UP", Style: upStyle}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "NODEPORT", Wide: true}, table.Column{Title: "BACKENDS", Wide: true}, table.Column{Title: "ERROR", Wide: true},
	)
	for i := range frontends {
		f := &frontends[i]
		var backends []string
		for _, b := range f.Backends {
			backends = append(backends, fmt.Sprintf("%s(%s)", b.Address, backendNote(&b)))
		}
		t.Row(f.Key.String(), string(f.Service), f.Port, string(f.Scheduler), upBackends(f.Backends),
			f.State, yesIf(f.NodePort), strings.Join(backends, ","), f.Error)
	}
	return t
}

// upBackends writes how many backends get new connections, of how many.
func upBackends(backends []api.Backend) string {
	active, all := 0, 0
	for _, b := range backends {
		if b.State == balancer.Active {
			active++
		}
		if b.State != balancer.Removed {
			all++
		}
	}
	return fmt.Sprintf("%d/%d", active, all)
}

// backendNote is a backend's weight, or why it has none.
func backendNote(b *api.Backend) string {
	if b.State == balancer.Active {
		return strconv.Itoa(b.Weight)
	}
	return string(b.State)
}
