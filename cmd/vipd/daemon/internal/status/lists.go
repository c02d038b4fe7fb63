package status

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/traffic"
)

// Services lists the services with their details, and the services that have never been accepted.
func (v *View) Services() []api.Service {
	frontends := map[balancer.Name][]api.Frontend{}
	for _, f := range v.Frontends() {
		frontends[f.Service] = append(frontends[f.Service], f)
	}
	problems := map[balancer.Name][]balancer.Problem{}
	for _, p := range slices.Concat(v.Problems(), v.retained()) {
		problems[p.Service] = append(problems[p.Service], p)
	}
	all := []api.Service{}
	for name, s := range v.State.Snapshot.Services.All() {
		endpoints := v.EndpointsOf(s)
		out := api.Service{
			Name: name, Origin: s.Origin, Definition: balancer.EncodeService(s), VIPs: []string{}, Ports: v.ports(s, api.UseOf(endpoints)),
			Endpoints: endpoints, Lookups: api.LookupsOf(s, &v.State.Inputs), Frontends: append([]api.Frontend{}, frontends[name]...), Problems: append([]balancer.Problem{}, problems[name]...), // not nil, so the JSON is []
		}
		out.Check, out.Checks = api.RulesOf(s)
		for _, vip := range s.Addresses() {
			out.VIPs = append(out.VIPs, vip.String())
			if v.State.Desired.VIPStates.At(vip) == balancer.Withdrawn {
				out.Withdrawn = append(out.Withdrawn, vip.String())
			}
		}
		all = append(all, out)
	}
	for name := range problems {
		if why := problems[name]; v.refused(name, why) {
			all = append(all, api.Service{
				Name: name, Origin: why[0].Origin, Definition: map[string]any{}, VIPs: []string{}, Ports: []api.Port{}, Endpoints: []api.Endpoint{},
				Frontends: []api.Frontend{}, Problems: why, Refused: true,
			})
		}
	}
	slices.SortFunc(all, func(a, b api.Service) int { return a.Name.Compare(b.Name) })
	return all
}

// refused reports whether a service with these problems has never been accepted because its
// definition has an error. A problem of another kind may concern a removed service.
func (v *View) refused(name balancer.Name, problems []balancer.Problem) bool {
	return name != "" && !v.State.Snapshot.Services.Has(name) && slices.ContainsFunc(problems, func(p balancer.Problem) bool {
		return isError(p) && (p.Kind == "" || p.Kind == balancer.Refused || p.Kind == balancer.PortReserved)
	})
}

func isError(p balancer.Problem) bool { return p.Severity == balancer.SeverityError }

// retained returns a problem for each service that keeps its last valid state because of an error
// outside its definition.
func (v *View) retained() (all []balancer.Problem) {
	reported := v.State.Reported()
	for _, name := range v.State.Snapshot.Retained {
		s := v.State.Snapshot.Services.At(name)
		if s == nil || slices.ContainsFunc(reported, func(p balancer.Problem) bool { return p.Service == name && isError(p) }) {
			continue
		}
		outside := func(p balancer.Problem) bool { return isError(p) && p.Service == "" }
		i := slices.IndexFunc(reported, func(p balancer.Problem) bool { return outside(p) && p.Origin.File == s.Origin.File })
		if i < 0 { // the service's file may have been removed
			i = slices.IndexFunc(reported, isError)
		}
		p := balancer.Problem{Severity: balancer.SeverityError, Origin: s.Origin.At(""), Service: name, Text: "stays in its last good state because of an error"}
		if i >= 0 {
			p.Origin = reported[i].Origin
			p.Text += ": " + reported[i].Text
		}
		all = append(all, p)
	}
	return all
}

func (v *View) ports(s *balancer.Service, use api.Use) []api.Port {
	ports := []api.Port{}
	for _, p := range s.Ports {
		c := v.Counts()[traffic.Port{Service: s.Name, Name: p.Name}]
		ports = append(ports, api.Port{
			Name: p.Name, Port: p.Port, Protocol: p.Protocol, TargetPort: p.TargetPort, NodePort: p.NodePort,
			Up: use.At(p.Name).Up, Of: use.At(p.Name).Of, Connections: c.Connections, In: c.In, Out: c.Out,
		})
	}
	return ports
}

// Endpoints lists the endpoints of all services.
func (v *View) Endpoints() []api.Endpoint {
	all := []api.Endpoint{}
	for _, s := range v.State.Snapshot.Services.All() {
		all = append(all, v.EndpointsOf(s)...)
	}
	return all
}

// EndpointsOf lists the endpoints of a service at each of its ports, including endpoints that only
// drain.
func (v *View) EndpointsOf(s *balancer.Service) []api.Endpoint {
	defined := balancer.EndpointsOf(s, &v.State.Inputs)
	all := make([]api.Endpoint, 0, len(s.Ports)*len(defined)) // allocated in one step, because an api.Endpoint is large
	for i := range s.Ports {
		p := &s.Ports[i]
		byAddress := make(map[netip.AddrPort]*api.Endpoint, len(defined))
		for _, e := range defined {
			at := netip.AddrPortFrom(e.Address, e.TargetPort(p))
			if byAddress[at] == nil {
				byAddress[at] = v.endpoint(s, p, e, at)
			}
		}
		for _, f := range v.frontendsOf(s, p) {
			for _, b := range f.Backends {
				e := byAddress[b.Addr]
				if e == nil {
					e = &api.Endpoint{Service: s.Name, Address: b.Addr.String(), TargetPorts: api.RangeFrom(b.Addr.Port(), p), Port: p.Name}
					byAddress[b.Addr] = e
				}
				e.State = b.State
				e.Weight = b.Weight
				e.Until = endOf(b)
				e.Cut = b.State == balancer.Down && !b.Until.IsZero() && v.State.Fell.Has(balancer.Target{Service: s.Name, Addr: b.Addr.Addr(), Port: b.Addr.Port()})
				e.Ramp = v.ramp(f.Key, b.Addr)
			}
		}
		for _, b := range v.Counts()[traffic.Port{Service: s.Name, Name: p.Name}].Backends {
			if e := byAddress[b.Backend]; e != nil {
				e.Active, e.Connections = b.Active, b.Connections
				if p.Protocol != balancer.UDP { // UDP without answers is normal
					e.Unanswered = b.Failures
				}
			}
		}
		for _, at := range slices.SortedFunc(maps.Keys(byAddress), netip.AddrPort.Compare) {
			all = append(all, *byAddress[at])
		}
	}
	return all
}

// endOf returns when a backend's remaining connections will be ended. It returns zero if they will
// not be ended, or were already ended.
func endOf(b balancer.Backend) time.Time {
	if b.State == balancer.Down {
		return time.Time{}
	}
	return b.Until
}

// endpoint returns the API's description of an endpoint, from its definition.
func (v *View) endpoint(s *balancer.Service, p *balancer.Port, e *balancer.Endpoint, at netip.AddrPort) *api.Endpoint {
	t := balancer.Target{Service: s.Name, Addr: at.Addr(), Port: at.Port()}
	var ejection *balancer.Ejection
	if x, ok := v.State.Inputs.Ejected.Get(t); ok {
		ejection = &x
	}
	var agent *balancer.AgentAnswer
	if answer, ok := v.State.Inputs.Agents.Get(t); ok {
		agent = &answer
	}
	return &api.Endpoint{
		Ejection: ejection, Agent: agent,
		Service: s.Name, Address: at.String(), TargetPorts: api.RangeFrom(at.Port(), p), Name: e.Name, Port: p.Name, Node: e.Node, Zone: e.Zone, Configured: e.Weight,
		Backup: e.Backup, Override: balancer.OverrideOf(&v.State.Inputs, t), Health: v.State.Inputs.Health.At(t), State: "unused",
		Check: v.checkOf(s, t), Unchecked: v.unchecked(s, t),
	}
}

// frontendsOf returns the frontends of a service's port. It omits a frontend if another service
// holds its key.
func (v *View) frontendsOf(s *balancer.Service, p *balancer.Port) []*balancer.Frontend {
	var all []*balancer.Frontend
	for _, vip := range s.Addresses() {
		f := v.State.Desired.Frontends.At(balancer.Key{Addr: vip, Port: p.Port, Proto: p.Protocol})
		if f != nil && f.Service == s.Name {
			all = append(all, f)
		}
	}
	return all
}

// Frontends lists the compiled frontends, and whether they are applied.
func (v *View) Frontends() []api.Frontend {
	all := []api.Frontend{}
	for key, f := range v.State.Desired.Frontends.All() {
		out := api.Frontend{
			Key: key, NodePort: f.NodePort, Service: f.Service, Port: f.Port, Scheduler: f.Scheduler, Backends: []api.Backend{},
			State: "applied",
		}
		if f.Forward != balancer.NATForward {
			out.Forward = f.Forward
		}
		if f.Source != balancer.NodeSource {
			out.Source = f.Source
		}
		for _, b := range f.Backends {
			out.Backends = append(out.Backends, api.Backend{Address: b.Addr.String(), State: b.State, Weight: b.Weight, Until: endOf(b)})
		}
		if failure, failing := v.Sync.Failing[key]; failing {
			out.State, out.Error = "failing", failure.Error()
		} else if v.Sync.Done.At(key) != f {
			out.State = "pending"
		}
		all = append(all, out)
	}
	return all
}

// Differences lists the keys whose applied state differs from the compiled state. If there are
// none, it lists shared parts that are unavailable.
func (v *View) Differences() []api.Difference {
	all := []api.Difference{}
	for key, c := range snap.Diff(v.Sync.Done, v.State.Desired.Frontends) {
		d := api.Difference{Key: key, What: "differs"}
		switch {
		case !c.HadOld:
			d.What, d.Service = "missing", c.New.Service
		case !c.HasNew:
			d.What, d.Service = "extra", c.Old.Service
		default:
			d.Service = c.New.Service
		}
		if failure, failing := v.Sync.Failing[key]; failing {
			d.Why = failure.Error()
		}
		all = append(all, d)
	}
	if v.Sync.LastError != "" && len(all) == 0 {
		all = append(all, api.Difference{What: "differs", Why: v.Sync.LastError})
	}
	return all
}

// Overrides lists manual overrides of endpoints, on this node or for the whole fleet.
func (v *View) Overrides() api.OverrideResult {
	r := api.OverrideResult{Targets: []api.OverrideTarget{}}
	for t, o := range v.State.Inputs.Overrides.All() {
		if o.IsSet() {
			r.Targets = append(r.Targets, api.OverrideTarget{Service: t.Service, Address: t.Address(), Override: o})
		}
	}
	return r
}

// Keys returns the keys that serve a service, or nil if the service does not exist.
func (v *View) Keys(name balancer.Name) (keys []balancer.Key) {
	s, ok := v.State.Snapshot.Services.Get(name)
	if !ok {
		return nil
	}
	for _, vip := range s.Addresses() {
		for _, p := range s.Ports {
			keys = append(keys, balancer.Key{Addr: vip, Port: p.Port, Proto: p.Protocol})
		}
	}
	return keys
}

// Traffic lists the counts of each service. If detailed returns true for a service, its endpoints'
// counts are included.
func (v *View) Traffic(detailed func(balancer.Name) bool) api.Traffic {
	t := api.Traffic{At: time.Now(), Node: v.State.Config.Node, Mode: string(v.Mode.Name), Services: []api.ServiceTraffic{}}
	for name, s := range v.State.Snapshot.Services.All() {
		out := api.ServiceTraffic{Name: name}
		endpoints := v.EndpointsOf(s)
		out.Ports = api.UseOf(endpoints)
		out.Up, out.Of = out.Ports.Worst()
		for _, p := range v.ports(s, out.Ports) {
			out.Connections = out.Connections + p.Connections
			out.In = out.In + p.In
			out.Out = out.Out + p.Out
		}
		for _, e := range endpoints {
			out.Active, out.Unanswered = out.Active+e.Active, out.Unanswered+e.Unanswered
			if detailed(name) {
				out.Endpoints = append(out.Endpoints, api.EndpointTraffic{
					Address: e.Address, TargetPorts: e.TargetPorts, Port: e.Port, State: e.State, Health: e.Health, Weight: e.Weight, Active: e.Active, Connections: e.Connections,
					Unanswered: e.Unanswered,
				})
			}
		}
		t.Services = append(t.Services, out)
	}
	return t
}
