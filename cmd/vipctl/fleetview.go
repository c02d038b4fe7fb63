package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/find"
	"vipd/cmd/internal/table"
	"vipd/store"
	"vipd/store/etcd"
)

// What follows shows services as etcd holds them: what is wanted of every host, without what only a host knows (health,
// connections, whether it runs).

// fleetServices are the services of a snapshot, in the daemon's own words.
func fleetServices(s *store.Snapshot) []api.Service {
	in := balancer.Inputs{Services: s.Services, Endpoints: s.Endpoints, Overrides: s.Overrides}
	problems := map[balancer.Name][]balancer.Problem{}
	for _, p := range s.Problems {
		problems[p.Service] = append(problems[p.Service], p)
	}
	all := []api.Service{}
	for name, service := range s.Services.All() {
		out := api.Service{
			Name: name, Origin: service.Origin, Definition: balancer.EncodeService(service), VIPs: []string{},
			Endpoints: fleetEndpoints(service, &in), Frontends: []api.Frontend{}, Problems: list(problems[name]), Check: api.RulesOf(service.Health),
		}
		for _, vip := range service.Addresses() {
			out.VIPs = append(out.VIPs, vip.String())
		}
		for _, p := range service.Ports {
			out.Ports = append(out.Ports, api.Port{Name: p.Name, Port: p.Port, Protocol: p.Protocol, TargetPort: p.TargetPort, NodePort: p.NodePort})
		}
		all = append(all, out)
	}
	return all
}

// fleetEndpoints lists the endpoints of a service at each of its ports, with what was said of them by hand.
func fleetEndpoints(s *balancer.Service, in *balancer.Inputs) []api.Endpoint {
	all := []api.Endpoint{}
	for i := range s.Ports {
		p := &s.Ports[i]
		of := map[netip.AddrPort]api.Endpoint{}
		for _, e := range balancer.EndpointsOf(s, in) {
			at := netip.AddrPortFrom(e.Address, e.TargetPort(p))
			if _, twice := of[at]; !twice {
				of[at] = fleetEndpoint(s, p, e, in, at)
			}
		}
		for _, at := range slices.SortedFunc(maps.Keys(of), netip.AddrPort.Compare) {
			all = append(all, of[at])
		}
	}
	return all
}

func fleetEndpoint(s *balancer.Service, p *balancer.Port, e *balancer.Endpoint, in *balancer.Inputs, at netip.AddrPort) api.Endpoint {
	out := api.Endpoint{
		Service: s.Name, Address: at.String(), Port: p.Name, Node: e.Node, Zone: e.Zone, Backup: e.Backup,
		Configured: e.Weight, Weight: e.Weight, State: balancer.Active,
		Override: balancer.OverrideOf(in, balancer.Target{Service: s.Name, Addr: at.Addr(), Port: at.Port()}),
	}
	draining := e.Draining
	if o := out.Override; o != nil {
		if o.Weight != nil {
			out.Weight = *o.Weight
		}
		if o.Draining != nil {
			if draining = *o.Draining; draining {
				out.Until = o.Until
			}
		}
	}
	switch {
	case draining:
		out.State, out.Weight = balancer.Draining, 0
	case out.Weight == 0:
		out.State = balancer.ZeroWeight
	}
	return out
}

// followFleet shows what etcd holds, and with -w again with each change. Meanwhile etcd may be away: what was read last
// is shown until it is back.
func (c *call) followFleet(show func(*store.Snapshot) error) error {
	w, err := c.fleet()
	if err != nil {
		return err
	}
	if !c.flags.Bool("watch") {
		s, err := w.Read(c, nil)
		if err != nil {
			return fmt.Errorf("reading etcd: %w", err)
		}
		return show(&s)
	}
	conf, err := c.etcdConfig()
	if err != nil {
		return err
	}
	source, err := etcd.New(etcd.Options{Config: conf})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(c.Context)
	defer cancel(nil)
	last := frame{}
	err = source.Watch(ctx, func(s store.Snapshot) {
		if err := c.showChange(&s, &last, show); err != nil {
			cancel(err)
		}
	})
	if cause := context.Cause(ctx); c.Err() == nil && cause != nil {
		return cause
	}
	return err
}

// showChange shows one state of etcd, or that it is away.
func (c *call) showChange(s *store.Snapshot, last *frame, show func(*store.Snapshot) error) error {
	switch {
	case !s.Connected && s.Revision == 0 && s.Err != nil:
		return s.Err
	case !s.Connected && s.Err != nil:
		fmt.Fprintf(c.stderr, "vipctl: %s\n", oneLine(s.Err.Error()))
		return nil
	case s.Revision == 0 && !s.Connected:
		return errors.New("etcd has not answered")
	}
	return c.showFrame(last, func() error { return show(s) })
}

// getFleet lists services or endpoints from etcd.
func getFleet(c *call, what, name string) error {
	return c.followFleet(func(s *store.Snapshot) error {
		services := fleetServices(s)
		if name != "" && !c.flags.Bool("watch") {
			service, _, _ := strings.Cut(name, "/")
			if !s.Services.Has(balancer.Name(service)) {
				return fmt.Errorf("there is no service %q in etcd%s", service, find.Meant(service, namesOf(services)))
			}
		}
		if name == "" {
			c.tellUnread(s)
		}
		if what == "services" {
			k := kind[api.Service]{plural: what, id: serviceID, named: serviceNamed, table: fleetServicesTable}
			return show(c, k, narrow(k, services, name), name)
		}
		var endpoints []api.Endpoint
		for i := range services {
			endpoints = append(endpoints, services[i].Endpoints...)
		}
		k := kind[api.Endpoint]{plural: what, id: endpointID, named: endpointNamed, table: fleetEndpointsTable}
		return show(c, k, narrow(k, endpoints, name), name)
	})
}

// tellUnread says on stderr what is in no list, because it can't be read.
func (c *call) tellUnread(s *store.Snapshot) {
	for _, p := range s.Problems {
		if isError(p) && !s.Services.Has(p.Service) {
			fmt.Fprintf(c.stderr, "vipctl: %s\n", table.Line(p.String()))
		}
	}
}

func namesOf(services []api.Service) []string {
	names := make([]string, len(services))
	for i := range services {
		names[i] = string(services[i].Name)
	}
	return names
}

func fleetServicesTable(c *call, services []api.Service) *table.Table {
	t := table.New(
		table.Column{Title: "NAME"}, table.Column{Title: "VIPS"}, table.Column{Title: "PORTS"},
		table.Column{Title: "ENDPOINTS"}, table.Column{Title: "PROBLEMS", Style: problemStyle},
		table.Column{Title: "SCHEDULER", Wide: true}, table.Column{Title: "REVISION", Wide: true, Right: true},
	)
	for i := range services {
		s := &services[i]
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
		vips, shown := few(s.VIPs, 1), few(ports, 3)
		if c.format == formWide {
			vips, shown = strings.Join(s.VIPs, ","), strings.Join(ports, ",")
		}
		t.Row(string(s.Name), vips, shown, up(s.Endpoints), problemCount(s.Problems),
			fieldText(s.Definition, "scheduler", string(balancer.WeightedRoundRobin)), strconv.FormatInt(s.Origin.Revision, 10))
	}
	return t
}

func fleetEndpointsTable(c *call, endpoints []api.Endpoint) *table.Table {
	t := table.New(
		table.Column{Title: "SERVICE"}, table.Column{Title: "PORT"}, table.Column{Title: "ADDRESS"},
		table.Column{Title: "WEIGHT", Right: true}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "CONFIGURED", Wide: true, Right: true}, table.Column{Title: "NODE", Wide: true},
		table.Column{Title: "ZONE", Wide: true}, table.Column{Title: "BACKUP", Wide: true}, table.Column{Title: "OVERRIDE", Wide: true},
	)
	for i := range endpoints {
		e := &endpoints[i]
		t.Row(string(e.Service), e.Port, e.Address, strconv.Itoa(e.Weight), string(e.State), strconv.Itoa(e.Configured),
			e.Node, e.Zone, yesIf(e.Backup), c.override(e.Override))
	}
	return t
}

func yesIf(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

// describeFleet describes one service as etcd holds it.
func (c *call) describeFleet(name string) error {
	return c.followFleet(func(s *store.Snapshot) error {
		services := fleetServices(s)
		for i := range services {
			if string(services[i].Name) == name {
				return c.describe(&services[i], true)
			}
		}
		for _, p := range s.Problems {
			if string(p.Service) == name {
				return fmt.Errorf("service %s can't be read: %s", name, p)
			}
		}
		return fmt.Errorf("there is no service %q in etcd%s", name, find.Meant(name, namesOf(services)))
	})
}

// fleetPorts and fleetEndpointRows are the tables of a description without what only a host knows.
func fleetPorts(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "NAME"}, table.Column{Title: "PORT"}, table.Column{Title: "TARGET"}, table.Column{Title: "NODEPORT"})
	for _, p := range s.Ports {
		nodePort := ""
		if p.NodePort != 0 {
			nodePort = strconv.Itoa(int(p.NodePort))
		}
		t.Row(p.Name, fmt.Sprintf("%d/%s", p.Port, p.Protocol), strconv.Itoa(int(p.TargetPort)), nodePort)
	}
	return t
}

func fleetEndpointRows(s *api.Service) *table.Table {
	t := table.New(
		table.Column{Title: "ADDRESS"}, table.Column{Title: "PORT"}, table.Column{Title: "SET", Right: true},
		table.Column{Title: "WEIGHT", Right: true}, table.Column{Title: "STATE", Style: stateStyle}, table.Column{Title: "AT"},
	)
	for _, e := range s.Endpoints {
		t.Row(e.Address, e.Port, strconv.Itoa(e.Configured), strconv.Itoa(e.Weight), string(e.State), placed(&e))
	}
	return t
}
