package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/watch"
)

// The functions below show services as stored in etcd: the desired state of every host, without
// details that only a host knows, such as health and connections.

// fleetServices returns a snapshot's services in the form of the daemon's API.
func fleetServices(s *store.Snapshot) []api.Service {
	in := balancer.Inputs{Services: s.Services, Endpoints: s.Endpoints, Overrides: s.Overrides}
	problems := map[balancer.Name][]balancer.Problem{}
	for _, p := range s.Problems {
		problems[p.Service] = append(problems[p.Service], p)
	}
	all := []api.Service{}
	for name, service := range s.Services.All() {
		out := api.Service{
			Name: name, Origin: service.Origin, Definition: balancer.EncodeService(service), VIPs: lists.Mapped(service.Addresses(), netip.Addr.String),
			Endpoints: fleetEndpoints(service, &in), Lookups: api.LookupsOf(service, &in), Frontends: []api.Frontend{}, Problems: lists.NonNil(problems[name]),
		}
		out.Check, out.Checks = api.RulesOf(service)
		for _, p := range service.Ports {
			out.Ports = append(out.Ports, api.Port{Name: p.Name, Port: p.Port, Protocol: p.Protocol, TargetPort: p.TargetPort, NodePort: p.NodePort})
		}
		all = append(all, out)
	}
	return all
}

// fleetEndpoints lists a service's endpoints at each of its ports, with their manual overrides.
func fleetEndpoints(s *balancer.Service, in *balancer.Inputs) []api.Endpoint {
	all := []api.Endpoint{}
	for i := range s.Ports {
		p := &s.Ports[i]
		byAddress := map[netip.AddrPort]api.Endpoint{}
		for _, e := range balancer.EndpointsOf(s, in) {
			at := netip.AddrPortFrom(e.Address, e.TargetPort(p))
			if _, twice := byAddress[at]; !twice {
				byAddress[at] = fleetEndpoint(s, p, e, in, at)
			}
		}
		for _, at := range slices.SortedFunc(maps.Keys(byAddress), netip.AddrPort.Compare) {
			all = append(all, byAddress[at])
		}
	}
	return all
}

func fleetEndpoint(s *balancer.Service, p *balancer.Port, e *balancer.Endpoint, in *balancer.Inputs, at netip.AddrPort) api.Endpoint {
	out := api.Endpoint{
		Service: s.Name, Address: at.String(), TargetPorts: api.RangeFrom(at.Port(), p), Port: p.Name, Node: e.Node, Zone: e.Zone, Backup: e.Backup,
		Configured: e.Weight, State: balancer.Active,
		Override: balancer.OverrideOf(in, balancer.Target{Service: s.Name, Addr: at.Addr(), Port: at.Port()}),
	}
	weight, draining := out.Override.Effective(e.Weight, e.Draining)
	if out.Weight = weight; out.Override.Drains() {
		out.Until = out.Override.Until
	}
	switch {
	case draining:
		out.State, out.Weight = balancer.Draining, 0
	case out.Weight == 0:
		out.State = balancer.ZeroWeight
	}
	return out
}

func readEtcd(w *etcd.Store, ctx context.Context) (store.Snapshot, error) {
	s, err := w.Read(ctx, nil)
	if err != nil {
		err = fmt.Errorf("reading etcd: %w", err)
	}
	return s, err
}

// followFleet shows etcd's content. With -w, it also shows each change. During an etcd outage, the
// last output remains.
func followFleet(c *cli.Call, show func(*store.Snapshot) error) error {
	if !c.Flags.Bool("watch") {
		s, err := cli.AskEtcd(c, readEtcd)
		if err != nil {
			return err
		}
		return show(&s)
	}
	conf, err := c.EtcdConfig()
	if err != nil {
		return err
	}
	source, err := watch.New(watch.Options{Config: conf})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(c.Context)
	defer cancel(nil)
	last := frame{}
	err = source.Watch(ctx, func(s store.Snapshot) {
		if err := showChange(c, &s, &last, show); err != nil {
			cancel(err)
		}
	})
	if cause := context.Cause(ctx); c.Err() == nil && cause != nil {
		return cause
	}
	return err
}

// showChange shows etcd's state, or that etcd is unavailable.
func showChange(c *cli.Call, s *store.Snapshot, last *frame, show func(*store.Snapshot) error) error {
	switch {
	case !s.Connected && s.Revision == 0 && s.Err != nil:
		return s.Err
	case !s.Connected && s.Err != nil:
		c.Note("%v", s.Err)
		return nil
	case s.Revision == 0 && !s.Connected:
		return errors.New("etcd has not answered")
	}
	return showFrame(c.Printer, last, func() error { return show(s) })
}

// readFleetServices calls show with the services in etcd, again after each change with -w.
func readFleetServices(c *cli.Call, show func([]api.Service) error) error {
	name, watch := c.Argument(1), c.Flags.Bool("watch")
	return followFleet(c, func(s *store.Snapshot) error {
		services := fleetServices(s)
		switch service, _, _ := strings.Cut(name, "/"); {
		case name == "":
			for _, p := range s.Problems { // the list lacks unreadable services, so print their problems
				if isError(p) && !s.Services.Has(p.Service) {
					c.Note("%s", p)
				}
			}
		case !watch && !s.Services.Has(balancer.Name(service)):
			return absent("service", service, " in etcd", namesOf(services))
		}
		return show(services)
	})
}

// describeFleet describes one service as stored in etcd.
func describeFleet(c *cli.Call, name string) error {
	return followFleet(c, func(s *store.Snapshot) error {
		services := fleetServices(s)
		if service := serviceIn(services, name); service != nil {
			return describe(c.Printer, &described{Service: service})
		}
		for _, p := range s.Problems {
			if string(p.Service) == name {
				return fmt.Errorf("service %s can't be read: %s", name, p)
			}
		}
		return absent("service", name, " in etcd", namesOf(services))
	})
}
