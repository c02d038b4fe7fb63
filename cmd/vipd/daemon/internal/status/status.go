package status

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
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/modeswitch"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/store"
)

// Sources holds the parts that a View reads.
type Sources struct {
	Version string
	Started time.Time
	// ConfigFile is the path of vipd.toml. Config is its content when vipd started.
	ConfigFile string
	Config     config.Config
	Model      *model.Model
	Modes      *modeswitch.Switch
	Engine     *dataplane.Engine
	Counters   *traffic.Counters
	Checks     *checks.Checks
	// Addresses returns the VIPs and their holders.
	Addresses func() []host.Held
	Fleet     Fleet
	// HostProblems returns the problems of the host and of other programs on it.
	HostProblems func() []balancer.Problem
	// Ownership describes the state of vipd owner, and returns the ages of other hosts'
	// confirmations. text is "" if this host owns no VIPs.
	Ownership func() (text string, confirmed map[string]float64)
}

// Fleet provides the part of the status that depends on the fleet.
type Fleet interface {
	// Problems returns the reasons why the fleet does not see this node while etcd is connected.
	Problems(connected bool) []balancer.Problem
	// Reached returns the newest revision of the store that the snapshot at revision represents.
	Reached(revision int64) int64
}

// View is the state at one moment: the last compiled state, the mode that serves, and the engine's
// status. All counts are read together, on demand. Only one goroutine may use a View.
type View struct {
	State *model.State
	Mode  *modeswitch.Chosen
	Sync  *dataplane.Status
	// Watched reports whether the view is for a client that follows changes. For such a client, a
	// check with an unchanged result is not a change.
	Watched bool

	from *Sources
	sums map[traffic.Port]dataplane.FrontendCount // see Counts

	usedOf *balancer.Service // see usedAt
	used   map[netip.Addr]*balancer.Endpoint
}

// Look returns a view of the current state.
func (s *Sources) Look() *View {
	return &View{State: s.Model.State(), Mode: s.Modes.Serving(), Sync: s.Engine.Status(), from: s}
}

// Counts returns the counts. The first call reads them, which may cost more than everything else.
// Before the first state is applied, Counts returns nil, because the counts of the previous process
// may still be missing.
func (v *View) Counts() map[traffic.Port]dataplane.FrontendCount {
	if v.sums == nil && v.Sync.Ready {
		v.sums = v.from.Counters.Counts()
	}
	return v.sums
}

// Active returns the number of live connections from a port to one backend.
func (v *View) Active(port traffic.Port, at netip.AddrPort) uint64 {
	for _, b := range v.Counts()[port].Backends {
		if b.Backend == at {
			return b.Active
		}
	}
	return 0
}

// Status summarizes the node's state.
func (v *View) Status() api.Status {
	s, e := v.State, v.Sync
	store := api.Store{
		Kind: string(v.from.Config.Store.Kind), Place: v.place(), Connected: s.Snapshot.Connected, EverRead: s.EverRead,
		Revision: s.Snapshot.Revision,
	}
	if s.Snapshot.Err != nil {
		store.Error = s.Snapshot.Err.Error()
	}
	endpoints, checked := 0, 0
	for _, service := range s.Snapshot.Services.All() {
		of := balancer.EndpointsOf(service, &s.Inputs)
		endpoints += len(of)
		checked += v.checkedOf(service, of)
	}
	owning, confirmed := v.from.Ownership()
	byHand := v.Overrides().Targets
	return api.Status{
		Overrides: len(byHand), ByHand: byHand[:min(maxByHand, len(byHand))],
		Ownership: owning, Confirmed: confirmed, Pending: Pending(&s.Snapshot),
		Version: v.from.Version, Node: s.Config.Node, Zone: s.Config.Zone, Started: v.from.Started, Mode: v.ModeStatus(), Store: store,
		Sync: api.Sync{
			Wanted: v.from.Fleet.Reached(s.Desired.Revision.Store), Applied: v.Applied(), Pending: v.Pending(), Failing: len(e.Failing),
			Last: e.Last, LastDuration: e.LastDuration, LastChanges: e.LastChanges, LastError: e.LastError, Repairs: e.Repairs,
		},
		Health: v.health(checked),
		Ready:  v.Ready(), Services: s.Snapshot.Services.Len(), Frontends: s.Desired.Frontends.Len(), Endpoints: endpoints,
		Addresses: v.Addresses(), Problems: v.Problems(),
	}
}

// Pending returns the pending changes in a snapshot.
func Pending(s *store.Snapshot) (all []api.Pending) {
	for _, p := range s.Pending {
		all = append(all, api.Pending{Place: p.Place, InEtcd: p.Text == "", By: p.By, Since: p.Since, Until: p.Until, On: p.On})
	}
	return all
}

// maxByHand is the maximum number of manual overrides that a status lists.
const maxByHand = 10

// ModeStatus returns the mode that serves, and why it was chosen.
func (v *View) ModeStatus() api.Mode {
	return api.Mode{
		InUse: string(v.Mode.Name), Wanted: string(v.State.Config.Mode), Reason: v.Mode.Reason, Fallback: v.Mode.Fallback,
		Detail: v.Mode.Dataplane.Traits().Detail,
	}
}

// Ready reports whether the first complete state is applied, and host names have their first DNS
// answers.
func (v *View) Ready() bool { return len(v.Unready()) == 0 }

// Unready returns the reasons why the node is not ready.
func (v *View) Unready() []string {
	s, e := v.State, v.Sync
	switch {
	case !s.Complete && s.Snapshot.Err != nil:
		return []string{fmt.Sprintf("the store has not been readable since vipd started, so no services from it are served yet: %v", s.Snapshot.Err)}
	case !s.Complete:
		return []string{"the store has not answered yet"}
	case !s.EverRead:
		return []string{fmt.Sprintf("the store has not been readable since vipd started: %v", s.Snapshot.Err)}
	case !s.NamesUntil.IsZero():
		return []string{"DNS has not answered yet for endpoints' names"}
	case !e.Ready && e.LastError != "":
		return []string{"the first complete state is not applied yet: " + e.LastError}
	case !e.Ready:
		return []string{"the first complete state is not applied yet"}
	}
	return nil
}

// Applied returns the newest revision of the store that is applied.
func (v *View) Applied() int64 { return v.from.Fleet.Reached(v.Sync.Applied.Store) }

// Pending returns the number of frontends that are not applied, except for frontends in backoff.
func (v *View) Pending() int {
	n := 0
	for key := range snap.Diff(v.Sync.Done, v.State.Desired.Frontends) {
		if _, failing := v.Sync.Failing[key]; !failing {
			n++
		}
	}
	return n
}

// Settled reports whether the compiled state is applied, except for frontends in backoff.
func (v *View) Settled() bool {
	return v.Pending() == 0 && v.Sync.Applied.Store == v.State.Desired.Revision.Store
}

// Addresses returns the VIPs and their holders.
func (v *View) Addresses() []api.Address {
	all := []api.Address{}
	for _, h := range v.from.Addresses() {
		a := api.Address{Address: h.Addr.String(), Held: h.Where, Owned: h.Standing == balancer.Owned, Silent: h.Silent, Note: h.Note}
		if why := v.State.Config.Unowned(); a.Owned && why != "" { // the host can't know who owns a VIP
			a.Note = "no host owns it: " + why
		}
		all = append(all, a)
	}
	for _, vip := range v.resting() {
		all = append(all, api.Address{Address: vip.String(), Held: "none", Note: "inactive until it is added to this host (addresses.bind is false)"})
	}
	return all
}

// resting returns the VIPs that another program manages but has not added to this host, sorted.
func (v *View) resting() []netip.Addr {
	if !v.State.Env.ExternalVIPs {
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

// place describes the source of services.
func (v *View) place() string {
	text := v.from.ConfigFile
	if path := v.State.Config.Store.Path; path != "" {
		text += " and " + path
	}
	if v.from.Config.Store.Kind == config.EtcdStore {
		text = fmt.Sprintf("%s at %s, %s", v.from.Config.Etcd.Prefix, strings.Join(v.from.Config.Etcd.Endpoints, ", "), text)
	}
	return text
}

// Problems returns all problems of the configuration, the store, the services, the mode and the
// host, and problems with frontends that can't be applied.
func (v *View) Problems() []balancer.Problem {
	s := v.State
	all := s.Reported()
	if v.Mode.Fallback {
		all = append(all, balancer.Problem{
			Severity: balancer.SeverityNearest, Origin: balancer.Origin{File: v.from.ConfigFile}, Field: "mode",
			Text: fmt.Sprintf("%s mode serves instead of %s: %s", v.Mode.Name, v.State.Config.Mode, v.Mode.Reason),
		})
	}
	for _, endpoints := range s.Desired.Problems.All() {
		all = append(all, *endpoints...)
	}
	all = append(all, s.Lacking...)
	all = append(all, v.LiveProblems()...)
	for _, key := range slices.SortedFunc(maps.Keys(v.Sync.Failing), balancer.Key.Compare) {
		f := s.Desired.Frontends.At(key)
		if f == nil {
			all = append(all, balancer.Problem{
				Severity: balancer.SeverityError, Text: fmt.Sprintf("%s is not removed: %v", key, v.Sync.Failing[key]),
			})
			continue
		}
		p := balancer.Problem{
			Severity: balancer.SeverityError, Kind: balancer.Unapplied, Service: f.Service,
			Text: fmt.Sprintf("%s is not applied: %v", key, v.Sync.Failing[key]),
		}
		if service := s.Snapshot.Services.At(f.Service); service != nil {
			p.Origin = service.Origin.At("")
		}
		all = append(all, p)
	}
	return all
}

// LiveProblems returns the problems that change independently of the state, the mode and the
// applied frontends. These are problems of the host, of checks, and of the fleet.
func (v *View) LiveProblems() (all []balancer.Problem) {
	s := v.State
	all = append(all, v.from.Fleet.Problems(s.Snapshot.Connected)...)
	all = append(all, v.from.Checks.Fleet.Problems(s.Snapshot.Connected)...)
	for _, p := range v.from.HostProblems() {
		if service := s.Snapshot.Services.At(p.Service); service != nil && p.Origin == (balancer.Origin{}) {
			p.Origin = service.Origin.At(p.Field) // the host knows addresses, not files
		}
		all = append(all, p)
	}
	return all
}
