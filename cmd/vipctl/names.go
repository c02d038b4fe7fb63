package main

import (
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/store/etcd"
)

// serviceNames returns the names of the daemon's services. fleetNames returns the names of services
// in etcd.
func serviceNames(c *cli.Call, _ []string) []string {
	services, _ := cli.AskDaemon(c, accepted)
	return namesOf(services)
}

func fleetNames(c *cli.Call, _ []string) []string {
	names, _ := cli.AskEtcd(c, (*etcd.Store).Names)
	return lists.Mapped(names, func(n balancer.Name) string { return string(n) })
}

// namesToList returns the names of all objects of the kind that the first argument of get or
// describe selects.
func namesToList(c *cli.Call, before []string) []string {
	switch kind := before[0]; {
	case strings.HasPrefix(kind, "pool"):
		return poolNames(c, nil)
	case strings.HasPrefix(kind, "node"):
		return nodeNames(c, nil)
	case c.NamesEtcd():
		return fleetNames(c, nil)
	}
	return serviceNames(c, nil)
}

// namesToOverride returns the services whose endpoints "drain" and "weight" can change.
// addressesToOverride returns one service's addresses.
func namesToOverride(c *cli.Call, _ []string) []string {
	if c.OverridesInEtcd() {
		return fleetNames(c, nil)
	}
	return serviceNames(c, nil)
}

func addressesToOverride(c *cli.Call, before []string) (out []string) {
	service := balancer.Name(before[0])
	if c.OverridesInEtcd() {
		s, _ := cli.AskEtcd(c, readEtcd)
		if found := s.Services.At(service); found != nil {
			for _, e := range balancer.EndpointsOf(found, &balancer.Inputs{Endpoints: s.Endpoints}) {
				out = append(out, e.Address.String())
			}
		}
		return out
	}
	for _, e := range endpointsOf(c, service) {
		if at, err := netip.ParseAddrPort(e.Address); err == nil {
			out = append(out, at.Addr().String())
		}
	}
	return out
}

// endpointsOf requests a service's endpoints from the daemon.
func endpointsOf(c *cli.Call, service balancer.Name) []api.Endpoint {
	all, _ := cli.AskDaemon(c, (*api.Client).Endpoints)
	return slices.DeleteFunc(all, func(e api.Endpoint) bool { return e.Service != service })
}
