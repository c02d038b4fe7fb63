package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
)

func getVerb() *cli.Verb {
	return &cli.Verb{
		Name: "get", Args: "services|endpoints|frontends|nodes|pools|vips [NAME]", Brief: "list services, endpoints, frontends, nodes, pools or VIPs",
		About: `Lists the daemon's services as defined, their endpoints with their state, or
the frontends that were compiled from them. NAME is a service; for frontends,
it may be a key such as 10.96.0.10:80/tcp. UP is the number of endpoints that
get new connections, per port if ports differ. svc, ep, fe and no are short
for the kinds, and svc/web means services web. With -w, the list is printed
again after each change.

-o wide adds columns. -o json prints the API's JSON, always a list. -o toml
prints services as a services file. -o name prints a name on each line: web,
web/192.168.1.11:8080 or 10.96.0.10:80/tcp.

With --etcd, services and endpoints are read from etcd, without the state of a
host. Frontends are always read from the daemon. Nodes, pools and VIPs with
one owner are always read from etcd; if VRRP decides the owners, VIPs are read
from the daemon.

For a node, the columns are its mode (! marks a fallback), the etcd revision
in its kernel, the number of revisions by which it lags, and the time since
its vipd started. A node that has gone is listed while etcd has settings for
it.`,
		Example: "vipctl get endpoints web -o wide",
		Flags: []cli.Flag{
			watchFlag(),
			&cli.BoolFlag{Name: "down", Usage: "with endpoints: list only endpoints that get no new connections, except idle backups"},
		},
		Formats: []string{cli.FormTable, cli.FormWide, cli.FormJSON, cli.FormTOML, cli.FormName}, Fleet: true,
		MinArgs: 1, MaxArgs: 2,
		Complete: cli.InTurn(cli.OneOf("services", "endpoints", "frontends", "nodes", "pools", "vips"), namesToList),
		SpellOut: withKind,
		Run:      runGet,
	}
}

// abbreviations maps short names of kinds to full names, as in kubectl.
var abbreviations = map[string]string{"svc": "services", "ep": "endpoints", "fe": "frontends", "no": "nodes"}

// withKind splits KIND/NAME, and expands a kind's short name.
func withKind(args []string) []string {
	if len(args) == 1 {
		if kind, name, _ := strings.Cut(args[0], "/"); name != "" {
			args = []string{kind, name}
		}
	}
	if len(args) > 0 && abbreviations[args[0]] != "" {
		args = append([]string{abbreviations[args[0]]}, args[1:]...)
	}
	if len(args) > 1 {
		args = append([]string{args[0], plainService(args[1])}, args[2:]...)
	}
	return args
}

// plainService returns NAME for service/NAME. It returns other text unchanged, such as
// service/10.0.0.1, an endpoint of "service".
func plainService(text string) string {
	kind, name, _ := strings.Cut(text, "/")
	if balancer.Name(name).Valid() && slices.Contains([]string{"service", "services", "svc"}, kind) {
		return name
	}
	return text
}

// kind is a kind of object that "get" lists.
type kind[T any] struct {
	// name is the kind's singular name. where follows the name in sentences, such as " in etcd".
	name, where string
	// read calls show with all objects of the kind. With -w, it calls show again after each change.
	read func(c *cli.Call, show func([]T) error) error
	// id returns an object's name for -o name. named reports whether an argument selects an object.
	// If named is nil, the argument must equal id.
	id    func(*T) string
	named func(*T, string) bool
	table func(*cli.Printer, []T) *table.Table
	// absent returns the error for a name that is not found. If nil, absentIn is used.
	absent func(c *cli.Call, name string) error
	// none is the sentence for an empty list. If "", a generic sentence is used.
	none string
}

// absentIn returns the error for a name that matches no object in the list all.
func (k *kind[T]) absentIn(all []T, name string) error {
	return absent(k.name, name, k.where, lists.Mapped(all, func(t T) string { return k.id(&t) }))
}

func runGet(c *cli.Call) error {
	name, err := kindName(c)
	if err != nil {
		return err
	}
	switch name {
	case "pools":
		return get(c, pools())
	case "vips":
		return get(c, vips(c))
	case "nodes":
		return get(c, nodes())
	case "services":
		return get(c, &kind[api.Service]{name: "service", read: readServices, id: serviceID, table: servicesTable, absent: isKnown})
	case "endpoints":
		return get(c, &kind[api.Endpoint]{name: "endpoint", read: readEndpoints, id: endpointID, named: endpointNamed, table: endpointsTable, absent: isKnown})
	}
	return get(c, &kind[api.Frontend]{name: "frontend", read: readFrontends, id: frontendID, named: frontendNamed, table: frontendsTable, absent: isFrontend})
}

func readServices(c *cli.Call, show func([]api.Service) error) error {
	if c.FleetWide {
		return readFleetServices(c, show)
	}
	return showDaemon(c, "services", (*api.Client).Services, show)
}

func readEndpoints(c *cli.Call, show func([]api.Endpoint) error) error {
	if c.FleetWide {
		return readFleetServices(c, func(services []api.Service) error {
			return show(slices.Concat(lists.Mapped(services, func(s api.Service) []api.Endpoint { return s.Endpoints })...))
		})
	}
	return showDaemon(c, "endpoints", (*api.Client).Endpoints, show)
}

func readFrontends(c *cli.Call, show func([]api.Frontend) error) error {
	return showDaemon(c, "frontends", (*api.Client).Frontends, show)
}

// kindName reads the kind in the first argument, which may be singular or plural.
func kindName(c *cli.Call) (string, error) {
	kinds := []string{"services", "endpoints", "frontends", "nodes", "pools", "vips"}
	name := strings.TrimSuffix(c.Args[0], "s") + "s"
	switch {
	case !slices.Contains(kinds, name):
		return "", cli.WrongUse("\"vipctl get\" lists %s, not %q%s", wording.List(kinds, "or"), c.Args[0], lookup.Meant(c.Args[0], kinds))
	case c.Format == cli.FormTOML && name != "services":
		return "", cli.WrongUse("-o toml prints definitions, which %s don't have; use \"vipctl get services -o toml\"", name)
	case c.Flags.Bool("down") && (name != "endpoints" || c.FleetWide):
		return "", cli.WrongUse("--down works only for the endpoints of this host's vipd: vipctl get endpoints --down")
	}
	return name, nil
}

// get lists the objects of a kind, or the objects that the second argument selects.
func get[T any](c *cli.Call, k *kind[T]) error {
	name := c.Argument(1)
	return k.read(c, func(all []T) error {
		selected := slices.DeleteFunc(slices.Clone(all), func(t T) bool {
			return name != "" && (k.named == nil && k.id(&t) != name || k.named != nil && !k.named(&t, name))
		})
		if name != "" && len(selected) == 0 && !c.Flags.Bool("watch") {
			err := k.absentIn(all, name)
			if k.absent != nil {
				err = k.absent(c, name)
			}
			if err != nil {
				return err
			}
		}
		if c.Flags.Bool("down") {
			selected = slices.DeleteFunc(selected, served)
		}
		switch c.Format {
		case cli.FormJSON:
			return c.PrintJSON(lists.NonNil(selected))
		case cli.FormName:
			return c.Print(idLines(selected, k.id))
		case cli.FormTOML:
			services, _ := any(selected).([]api.Service)
			return c.Print(servicesTOML(slices.DeleteFunc(services, func(s api.Service) bool { return s.Refused })))
		}
		none := cmp.Or(k.none, "there are no "+k.name+"s")
		switch {
		case name != "" && k.named == nil:
			none = fmt.Sprintf("there is no %s %q", k.name, name)
		case name != "":
			none = fmt.Sprintf("%s has no %ss", name, k.name)
		}
		if c.Flags.Bool("down") {
			none += " that are down or out of use"
		}
		return c.PrintTable(k.table(c.Printer, selected), none)
	})
}

// idLines returns a line for each name. It removes duplicates because an endpoint with two ports at
// one address is listed twice.
func idLines[T any](all []T, id func(*T) string) string {
	var text strings.Builder
	listed := map[string]bool{}
	for i := range all {
		if name := id(&all[i]); !listed[name] {
			listed[name] = true
			text.WriteString(name + "\n")
		}
	}
	return text.String()
}

// served reports whether --down omits t. It omits an endpoint that is not down and is active, on
// standby, or excluded by locality.
func served[T any](t T) bool {
	e, _ := any(t).(api.Endpoint)
	switch e.State {
	case balancer.Active, balancer.Standby, balancer.Remote:
		return e.Health != balancer.HealthDown
	}
	return false
}

// isKnown is like isService for the daemon. For etcd, it returns nil, because readFleetServices has
// already checked the name.
func isKnown(c *cli.Call, name string) error {
	if c.FleetWide {
		return nil
	}
	return isService(c, name)
}

// isService returns an error with a suggestion if the daemon does not have the service.
func isService(c *cli.Call, name string) error {
	services, err := cli.AskDaemon(c, accepted)
	if err != nil || slices.ContainsFunc(services, func(s api.Service) bool { return string(s.Name) == name }) {
		return err
	}
	return notServed(c, name, services)
}

// accepted returns the daemon's services, except those whose definition was never accepted.
func accepted(d *api.Client, ctx context.Context) ([]api.Service, error) {
	services, err := d.Services(ctx)
	return slices.DeleteFunc(services, func(s api.Service) bool { return s.Refused }), err
}

// isFrontend returns the error for a name that selects no frontend. It returns nil if name is a
// service.
func isFrontend(c *cli.Call, name string) error {
	if _, err := balancer.ParseKey(name); err == nil {
		return absent("frontend", name, "", frontendKeys(c, nil))
	}
	return isService(c, name)
}

// notServed returns the error for a service that the daemon does not have, because its definition
// is missing or has an error.
func notServed(c *cli.Call, name string, services []api.Service) error {
	if s, err := cli.AskDaemon(c, (*api.Client).Status); err == nil {
		for _, p := range s.Problems {
			if string(p.Service) == name && isError(p) {
				return fmt.Errorf("service %q is not served: %s", name, p)
			}
		}
	}
	return absent("service", name, "", namesOf(services))
}

// absent returns the error for an unknown name. It suggests a similar name or, if there is none,
// lists the known names. where says where the name was searched.
func absent(what, name, where string, known []string) error {
	return fmt.Errorf("there is no %s %q%s%s", what, name, where, lookup.Other(name, known))
}

func namesOf(services []api.Service) []string {
	return lists.Mapped(services, func(s api.Service) string { return string(s.Name) })
}

func serviceID(s *api.Service) string { return string(s.Name) }

func endpointID(e *api.Endpoint) string { return string(e.Service) + "/" + e.Address }

func endpointNamed(e *api.Endpoint, name string) bool {
	service, address, _ := strings.Cut(name, "/")
	return string(e.Service) == service && (address == "" || address == e.Place() || isAt(e.Address, address) || e.Name != "" && lookup.HostName(e.Name) == lookup.HostName(address))
}

func frontendID(f *api.Frontend) string { return f.Key.String() }

func frontendNamed(f *api.Frontend, name string) bool {
	key, err := balancer.ParseKey(name)
	return string(f.Service) == name || err == nil && f.Key == key
}
