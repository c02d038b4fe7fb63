package view

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/vipd/daemon/internal/checks"
	"vipd/cmd/vipd/daemon/internal/chooser"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/tally"
	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/store/etcd"
)

// Sources are what is looked at.
type Sources struct {
	Version string
	Started time.Time
	// ConfigFile is vipd.toml, and Config what was in it at the start.
	ConfigFile string
	Config     config.Config
	Model      *model.Model
	Chooser    *chooser.Chooser
	Engine     *dataplane.Engine
	Tally      *tally.Tally
	Checks     *checks.Checks
	Host       *host.Host
	Fleet      Fleet // nil: the store is not a fleet's
}

// Fleet is what is asked of this node's part in a fleet.
type Fleet interface {
	// Problems says why the fleet does not see this node, while etcd is connected.
	Problems(connected bool) []balancer.Problem
	// Position is up to where the store was followed.
	Position() etcd.Position
}

// View is what is said of one moment: the last compiled state, the mode that serves, the engine's status and, once they are
// asked for, the counts, taken together. It belongs to one goroutine.
type View struct {
	State *model.State
	Mode  *chooser.Chosen
	Sync  *dataplane.Status
	// Watched: it is made for somebody who is told of changes, of which a check that comes to the same is none.
	Watched bool

	from *Sources
	sums map[tally.Port]dataplane.FrontendCount // see Counts
}

// Look returns what is so now.
func (s *Sources) Look() *View {
	return &View{State: s.Model.State(), Mode: s.Chooser.Serving(), Sync: s.Engine.Status(), from: s}
}

// list returns one that JSON writes as [].
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// Counts returns what was counted when they were first asked for: reading them may cost more than all the rest.
func (v *View) Counts() map[tally.Port]dataplane.FrontendCount {
	if v.sums == nil {
		v.sums = v.from.Tally.Counts()
	}
	return v.sums
}

// Status sums up how this node is.
func (v *View) Status() api.Status {
	s, e := v.State, v.Sync
	store := api.Store{
		Kind: string(v.from.Config.Store.Kind), Place: v.place(), Connected: s.Snapshot.Connected, EverRead: s.EverRead,
		Revision: s.Snapshot.Revision,
	}
	if s.Snapshot.Err != nil {
		store.Error = s.Snapshot.Err.Error()
	}
	mode := api.Mode{
		InUse: string(v.Mode.Name), Wanted: string(s.Config.Mode), Reason: v.Mode.Reason, Fallback: v.Mode.Fallback,
	}
	if d, ok := v.Mode.Dataplane.(interface{ Detail() string }); ok {
		mode.Detail = d.Detail()
	}
	endpoints, checked := 0, 0
	for _, service := range s.Snapshot.Services.All() {
		of := balancer.EndpointsOf(service, &s.Inputs)
		endpoints += len(of)
		checked += v.checkedOf(service, of)
	}
	return api.Status{
		Version: v.from.Version, Node: s.Config.Node, Zone: s.Config.Zone, Started: v.from.Started, Mode: mode, Store: store,
		Sync: api.Sync{
			Wanted: v.reached(s.Desired.Revision.Store), Applied: v.Applied(), Pending: v.Pending(), Failing: len(e.Failing),
			Last: e.Last, LastDuration: e.LastDuration, LastChanges: e.LastChanges, LastError: e.LastError, Repairs: e.Repairs,
		},
		Health: v.health(checked),
		Ready:  v.Ready(), Services: s.Snapshot.Services.Len(), Frontends: s.Desired.Frontends.Len(), Endpoints: endpoints,
		Addresses: v.addresses(), Problems: v.Problems(),
	}
}

// Ready reports whether the first complete state is carried out.
func (v *View) Ready() bool { return len(v.Unready()) == 0 }

// Unready says why the first complete state is not carried out yet.
func (v *View) Unready() []string {
	s, e := v.State, v.Sync
	switch {
	case !s.Complete:
		return []string{"the store has not given its first complete state yet"}
	case !s.EverRead:
		return []string{fmt.Sprintf("the store could not be read since the start: %v", s.Snapshot.Err)}
	case !e.Ready && e.LastError != "":
		return []string{"the first complete state is not carried out yet: " + e.LastError}
	case !e.Ready:
		return []string{"the first complete state is not carried out yet"}
	}
	return nil
}

// Applied is the store's revision that is carried out.
func (v *View) Applied() int64 { return v.reached(v.Sync.Applied.Store) }

// reached is the newest revision of the store for which the snapshot of another one is complete.
func (v *View) reached(revision int64) int64 {
	if v.from.Fleet != nil {
		if at := v.from.Fleet.Position(); at.Published == revision {
			return at.Seen // what has changed since made no difference
		}
	}
	return revision
}

// Pending counts the frontends that are not as wanted, those in backoff aside.
func (v *View) Pending() int {
	n := 0
	for key := range snap.Diff(v.Sync.Done, v.State.Desired.Frontends) {
		if _, failing := v.Sync.Failing[key]; !failing {
			n++
		}
	}
	return n
}

func (v *View) addresses() []api.Address {
	all := []api.Address{}
	for _, h := range v.from.Host.Addresses() {
		all = append(all, api.Address{Address: h.Addr.String(), Held: h.Where, Note: h.Note})
	}
	for _, vip := range v.resting() {
		all = append(all, api.Address{Address: vip.String(), Held: "none", Note: "rests until somebody brings it (addresses.bind is false)"})
	}
	return all
}

// resting are the VIPs that somebody else is to bring and has not, sorted.
func (v *View) resting() []netip.Addr {
	if !v.State.Env.LocalOnly {
		return nil
	}
	var vips []netip.Addr
	for _, s := range v.State.Snapshot.Services.All() {
		for _, vip := range s.Addresses() {
			if !v.State.Desired.Addresses.Has(vip) {
				vips = append(vips, vip)
			}
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	return slices.Compact(vips)
}

// Services lists the services, with all that is known of each.
func (v *View) Services() []api.Service {
	frontends := map[balancer.Name][]api.Frontend{}
	for _, f := range v.Frontends() {
		frontends[f.Service] = append(frontends[f.Service], f)
	}
	problems := map[balancer.Name][]balancer.Problem{}
	for _, p := range v.Problems() {
		problems[p.Service] = append(problems[p.Service], p)
	}
	all := []api.Service{}
	for name, s := range v.State.Snapshot.Services.All() {
		out := api.Service{
			Name: name, Origin: s.Origin, Definition: balancer.EncodeService(s), Check: checkRules(s.Health), VIPs: []string{}, Ports: v.ports(s),
			Endpoints: v.EndpointsOf(s), Frontends: list(frontends[name]), Problems: list(problems[name]),
		}
		for _, vip := range s.Addresses() {
			out.VIPs = append(out.VIPs, vip.String())
		}
		all = append(all, out)
	}
	return all
}

func (v *View) ports(s *balancer.Service) []api.Port {
	ports := []api.Port{}
	for _, p := range s.Ports {
		c := v.Counts()[tally.Port{Service: s.Name, Port: p.Name}]
		ports = append(ports, api.Port{
			Name: p.Name, Port: p.Port, Protocol: p.Protocol, TargetPort: p.TargetPort, NodePort: p.NodePort,
			Connections: c.Connections, In: c.In, Out: c.Out,
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

// EndpointsOf lists the endpoints of a service at each of its ports, those that only drain included.
func (v *View) EndpointsOf(s *balancer.Service) []api.Endpoint {
	all := []api.Endpoint{}
	for i := range s.Ports {
		p := &s.Ports[i]
		of := map[netip.AddrPort]*api.Endpoint{}
		for _, e := range balancer.EndpointsOf(s, &v.State.Inputs) {
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
				e.State, e.Weight, e.Until, e.Cut = b.State, b.Weight, endOf(b), cuts(b) && v.State.Fell.Has(balancer.Target{Service: s.Name, Addr: b.Addr.Addr(), Port: b.Addr.Port()})
				e.Ramp = v.ramp(f.Key, b.Addr)
			}
		}
		for _, b := range v.Counts()[tally.Port{Service: s.Name, Port: p.Name}].Backends {
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
func (v *View) endpoint(s *balancer.Service, p *balancer.Port, e *balancer.Endpoint, at netip.AddrPort) *api.Endpoint {
	t := balancer.Target{Service: s.Name, Addr: at.Addr(), Port: at.Port()}
	var ejection *balancer.Ejection
	if x, ok := v.State.Inputs.Ejected.Get(t); ok {
		ejection = &x
	}
	return &api.Endpoint{
		Ejection: ejection,
		Service:  s.Name, Address: at.String(), Port: p.Name, Node: e.Node, Zone: e.Zone, Configured: e.Weight,
		Backup: e.Backup, Override: balancer.OverrideOf(&v.State.Inputs, t), Health: v.State.Inputs.Health.At(t), State: "unused",
		Check: v.checkOf(s, t), Unchecked: v.unchecked(s, t),
	}
}

// frontendsOf returns the frontends that a port of a service has; none where another service holds them all.
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

// Frontends lists what is compiled, and what has become of it.
func (v *View) Frontends() []api.Frontend {
	all := []api.Frontend{}
	for key, f := range v.State.Desired.Frontends.All() {
		out := api.Frontend{
			Key: key, NodePort: f.NodePort, Service: f.Service, Port: f.Port, Scheduler: f.Scheduler, Backends: []api.Backend{},
			State: "applied",
		}
		for _, b := range f.Backends {
			out.Backends = append(out.Backends, api.Backend{Address: b.Addr.String(), State: b.State, Weight: b.Weight, Until: endOf(b)})
		}
		if failure, failing := v.Sync.Failing[key]; failing {
			out.State, out.Error = "failing", failure.Err.Error()
		} else if v.Sync.Done.At(key) != f {
			out.State = "pending"
		}
		all = append(all, out)
	}
	return all
}

// Differences lists the keys that do not run as wanted.
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
			d.Why = failure.Err.Error()
		}
		all = append(all, d)
	}
	return all
}

// Overrides lists what is said by hand of endpoints, here or for the whole fleet.
func (v *View) Overrides() api.OverrideResult {
	r := api.OverrideResult{Targets: []api.OverrideTarget{}}
	for t, o := range v.State.Inputs.Overrides.All() {
		r.Targets = append(r.Targets, api.OverrideTarget{Service: t.Service, Address: t.Address(), Override: o})
	}
	return r
}

// place says where services come from.
func (v *View) place() string {
	text := v.from.ConfigFile
	if path := v.State.Config.Store.Path; path != "" {
		text += " and " + path
	}
	if v.from.Fleet != nil {
		text = fmt.Sprintf("%s at %s, %s", v.from.Config.Etcd.Prefix, strings.Join(v.from.Config.Etcd.Endpoints, ", "), text)
	}
	return text
}

// Active are the live connections of a port to one backend.
func (v *View) Active(port tally.Port, at netip.AddrPort) uint64 {
	for _, b := range v.Counts()[port].Backends {
		if b.Backend == at {
			return b.Active
		}
	}
	return 0
}
