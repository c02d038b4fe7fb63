package daemon

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/chooser"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/tally"
	"vipd/dataplane"
)

// view is what the API says of one moment: the last compiled state, the engine's status and the counters, taken
// together.
type view struct {
	*Daemon
	state  *model.State
	mode   *chooser.Chosen
	engine *dataplane.Status
	sums   map[tally.Port]dataplane.FrontendCount // see counts
	// watched: it is made for somebody who is told of changes, of which a check that comes to the same is none.
	watched bool
}

func (d *Daemon) newView() *view {
	return &view{Daemon: d, state: d.model.State(), mode: d.chooser.Serving(), engine: d.engine.Status()}
}

// counts returns what was counted when they were first asked for: reading them may cost more than all the rest.
func (v *view) counts() map[tally.Port]dataplane.FrontendCount {
	if v.sums == nil {
		v.sums = v.tally.Counts()
	}
	return v.sums
}

func (v *view) status() api.Status {
	s, e := v.state, v.engine
	store := api.Store{
		Kind: string(v.config.Store.Kind), Place: v.place(), Connected: s.Snapshot.Connected, EverRead: s.EverRead,
		Revision: s.Snapshot.Revision,
	}
	if s.Snapshot.Err != nil {
		store.Error = s.Snapshot.Err.Error()
	}
	mode := api.Mode{
		InUse: string(v.mode.Name), Wanted: string(s.Config.Mode), Reason: v.mode.Reason, Fallback: v.mode.Fallback,
	}
	if d, ok := v.mode.Dataplane.(interface{ Detail() string }); ok {
		mode.Detail = d.Detail()
	}
	endpoints, checked := 0, 0
	for _, service := range s.Snapshot.Services.All() {
		of := balancer.EndpointsOf(service, &s.Inputs)
		endpoints += len(of)
		checked += v.checkedOf(service, of)
	}
	return api.Status{
		Version: v.Version, Node: s.Config.Node, Zone: s.Config.Zone, Started: v.started, Mode: mode, Store: store,
		Sync: api.Sync{
			Wanted: v.reached(s.Desired.Revision.Store), Applied: v.applied(), Pending: v.pending(), Failing: len(e.Failing),
			Last: e.Last, LastDuration: e.LastDuration, LastChanges: e.LastChanges, LastError: e.LastError, Repairs: e.Repairs,
		},
		Health: v.health(checked),
		Ready:  v.ready(), Services: s.Snapshot.Services.Len(), Frontends: s.Desired.Frontends.Len(), Endpoints: endpoints,
		Addresses: v.addresses(), Problems: emptyIfNil(v.problems()),
	}
}

// applied is the store's revision that is carried out.
func (v *view) applied() int64 { return v.reached(v.engine.Applied.Store) }

// reached is the newest revision of the store for which the snapshot of another one is complete.
func (v *view) reached(revision int64) int64 {
	if v.fleet != nil {
		if at := v.fleet.source.Position(); at.Published == revision {
			return at.Seen // what has changed since made no difference
		}
	}
	return revision
}

// pending counts the frontends that are not as wanted, those in backoff aside.
func (v *view) pending() int {
	n := 0
	for key := range snap.Diff(v.engine.Done, v.state.Desired.Frontends) {
		if _, failing := v.engine.Failing[key]; !failing {
			n++
		}
	}
	return n
}

func (v *view) addresses() []api.Address {
	all := []api.Address{}
	for _, h := range v.host.Addresses() {
		all = append(all, api.Address{Address: h.Addr.String(), Held: h.Where, Note: h.Note})
	}
	for _, vip := range v.resting() {
		all = append(all, api.Address{Address: vip.String(), Held: "none", Note: "rests until somebody brings it (addresses.bind is false)"})
	}
	return all
}

// resting are the VIPs that somebody else is to bring and has not, sorted.
func (v *view) resting() []netip.Addr {
	if !v.state.Env.LocalOnly {
		return nil
	}
	var vips []netip.Addr
	for _, s := range v.state.Snapshot.Services.All() {
		for _, vip := range s.Addresses() {
			if !v.state.Desired.Addresses.Has(vip) {
				vips = append(vips, vip)
			}
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	return slices.Compact(vips)
}

func (v *view) services() []api.Service {
	frontends := map[balancer.Name][]api.Frontend{}
	for _, f := range v.frontends() {
		frontends[f.Service] = append(frontends[f.Service], f)
	}
	problems := map[balancer.Name][]balancer.Problem{}
	for _, p := range v.problems() {
		problems[p.Service] = append(problems[p.Service], p)
	}
	all := []api.Service{}
	for name, s := range v.state.Snapshot.Services.All() {
		out := api.Service{
			Name: name, Origin: s.Origin, Definition: balancer.EncodeService(s), Check: checkRules(s.Health), VIPs: []string{}, Ports: v.ports(s),
			Endpoints: v.endpointsOf(s), Frontends: emptyIfNil(frontends[name]), Problems: emptyIfNil(problems[name]),
		}
		for _, vip := range s.Addresses() {
			out.VIPs = append(out.VIPs, vip.String())
		}
		all = append(all, out)
	}
	return all
}

func (v *view) ports(s *balancer.Service) []api.Port {
	ports := []api.Port{}
	for _, p := range s.Ports {
		c := v.counts()[tally.Port{Service: s.Name, Port: p.Name}]
		ports = append(ports, api.Port{
			Name: p.Name, Port: p.Port, Protocol: p.Protocol, TargetPort: p.TargetPort, NodePort: p.NodePort,
			Connections: c.Connections, In: c.In, Out: c.Out,
		})
	}
	return ports
}

func (v *view) endpoints() []api.Endpoint {
	all := []api.Endpoint{}
	for _, s := range v.state.Snapshot.Services.All() {
		all = append(all, v.endpointsOf(s)...)
	}
	return all
}

// endpointsOf lists the endpoints of a service at each of its ports, those that only drain included.
func (v *view) endpointsOf(s *balancer.Service) []api.Endpoint {
	all := []api.Endpoint{}
	for i := range s.Ports {
		p := &s.Ports[i]
		of := map[netip.AddrPort]*api.Endpoint{}
		for _, e := range balancer.EndpointsOf(s, &v.state.Inputs) {
			at := netip.AddrPortFrom(e.Address, e.TargetPort(p))
			if of[at] == nil {
				of[at] = v.endpoint(s, p, e, at)
			}
		}
		for _, f := range v.frontendsOf(s, p) {
			for _, b := range f.Backends {
				e := of[b.Addr]
				if e == nil {
					e = &api.Endpoint{Service: s.Name, Address: b.Addr.String(), Port: p.Name}
					of[b.Addr] = e
				}
				e.State, e.Weight, e.Until, e.Cut = b.State, b.Weight, endOf(b), cuts(b) && v.state.Fell.Has(balancer.Target{Service: s.Name, Addr: b.Addr.Addr(), Port: b.Addr.Port()})
				e.Ramp = v.ramp(f.Key, b.Addr)
			}
		}
		for _, b := range v.counts()[tally.Port{Service: s.Name, Port: p.Name}].Backends {
			if e := of[b.Backend]; e != nil {
				e.Active, e.Connections = b.Active, b.Connections
			}
		}
		for _, at := range slices.SortedFunc(maps.Keys(of), netip.AddrPort.Compare) {
			all = append(all, *of[at])
		}
	}
	return all
}

// endOf is when what is left of a backend's connections is ended; zero: never, or that was at once.
func endOf(b balancer.Backend) time.Time {
	if b.State == balancer.Down {
		return time.Time{}
	}
	return b.Until
}

// endpoint starts the view of one endpoint from its definition.
func (v *view) endpoint(s *balancer.Service, p *balancer.Port, e *balancer.Endpoint, at netip.AddrPort) *api.Endpoint {
	t := balancer.Target{Service: s.Name, Addr: at.Addr(), Port: at.Port()}
	var ejection *balancer.Ejection
	if x, ok := v.state.Inputs.Ejected.Get(t); ok {
		ejection = &x
	}
	return &api.Endpoint{
		Ejection: ejection,
		Service:  s.Name, Address: at.String(), Port: p.Name, Node: e.Node, Zone: e.Zone, Configured: e.Weight,
		Backup: e.Backup, Override: balancer.OverrideOf(&v.state.Inputs, t), Health: v.state.Inputs.Health.At(t), State: "unused",
		Check: v.checkOf(s, t), Unchecked: v.unchecked(s, t),
	}
}

// frontendsOf returns the frontends that a port of a service has; none where another service holds them all.
func (v *view) frontendsOf(s *balancer.Service, p *balancer.Port) []*balancer.Frontend {
	var all []*balancer.Frontend
	for _, vip := range s.Addresses() {
		f := v.state.Desired.Frontends.At(balancer.Key{Addr: vip, Port: p.Port, Proto: p.Protocol})
		if f != nil && f.Service == s.Name {
			all = append(all, f)
		}
	}
	return all
}

func (v *view) frontends() []api.Frontend {
	all := []api.Frontend{}
	for key, f := range v.state.Desired.Frontends.All() {
		out := api.Frontend{
			Key: key, NodePort: f.NodePort, Service: f.Service, Port: f.Port, Scheduler: f.Scheduler, Backends: []api.Backend{},
			State: "applied",
		}
		for _, b := range f.Backends {
			out.Backends = append(out.Backends, api.Backend{Address: b.Addr.String(), State: b.State, Weight: b.Weight, Until: endOf(b)})
		}
		if failure, failing := v.engine.Failing[key]; failing {
			out.State, out.Error = "failing", failure.Err.Error()
		} else if v.engine.Done.At(key) != f {
			out.State = "pending"
		}
		all = append(all, out)
	}
	return all
}

// differences lists the keys that do not run as wanted.
func (v *view) differences() []api.Difference {
	all := []api.Difference{}
	for key, c := range snap.Diff(v.engine.Done, v.state.Desired.Frontends) {
		d := api.Difference{Key: key, What: "differs"}
		switch {
		case !c.HadOld:
			d.What, d.Service = "missing", c.New.Service
		case !c.HasNew:
			d.What, d.Service = "extra", c.Old.Service
		default:
			d.Service = c.New.Service
		}
		if failure, failing := v.engine.Failing[key]; failing {
			d.Why = failure.Err.Error()
		}
		all = append(all, d)
	}
	return all
}

func (v *view) overrides() api.OverrideResult {
	r := api.OverrideResult{Targets: []api.OverrideTarget{}}
	for t, o := range v.state.Inputs.Overrides.All() {
		r.Targets = append(r.Targets, api.OverrideTarget{Service: t.Service, Address: t.Address(), Override: o})
	}
	return r
}
