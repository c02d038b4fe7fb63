package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/modeswitch"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
	"vipd/store/etcd/watch"
	"vipd/store/statedir"
)

// Member is this node's membership in a fleet. It is nil if this node does not belong to a fleet.
type Member struct {
	o        Options
	source   *watch.Source
	writer   *etcd.Store
	presence *fleet.Presence

	mu      sync.Mutex
	trouble error     // the reason why the fleet does not see this node, or nil
	unseen  time.Time // when trouble was first reported
	seen    bool      // set once the fleet has seen this node

	followed bool      // set once etcd has been reached
	lost     time.Time // when etcd was lost, or zero

	// set is this node's last configuration from etcd, or nil before etcd has provided one. Only
	// the source's goroutine uses it.
	set *schema.NodeConfig

	// Run owns the fields below. published holds the last published addresses of this node.
	// publishedOf and sources are the state and the source addresses from which they were derived.
	publishedOf *model.State
	sources     []netip.Addr
	published   *balancer.Node
}

// Options configures a Member.
type Options struct {
	// Config is etcd's client configuration, and Name is this node's name.
	Config client.Config
	Name   string
	// StateDir stores the last valid state, for use while etcd is unavailable.
	StateDir *statedir.Dir
	// Defaults holds the values of fields that services do not set. Source().SetDefaults replaces
	// these values.
	Defaults map[string]any
	// Version and Started are published to the fleet.
	Version string
	Started time.Time
	// Lease is how long other nodes still see this node after vipd exits.
	Lease  time.Duration
	Log    *slog.Logger
	Events *events.History
	// Configured receives this node's configuration from etcd.
	Configured func(schema.NodeConfig)
	// Zone and Pended have the meaning of the same fields of watch.Options.
	Zone   func() string
	Pended func(p *store.Pending, how store.Outcome, by string)
	// Sources lists the addresses from which this node sends. If Sources is nil, these addresses
	// are unknown.
	Sources func() []netip.Addr
}

// New returns a Member that does nothing before Run and its source start. The error names the
// invalid part of the configuration.
func New(o Options) (*Member, error) {
	if o.Sources == nil {
		o.Sources = func() []netip.Addr { return nil }
	}
	f := &Member{o: o}
	var err error
	f.source, err = watch.New(watch.Options{
		Config: o.Config, StateDir: o.StateDir, Defaults: o.Defaults, Log: o.Log, Node: o.Name, Configured: f.configured, Connection: f.connection,
		Zone: o.Zone, Pended: o.Pended,
	})
	if err != nil {
		return nil, err
	}
	if f.writer, err = etcd.NewStore(o.Config); err != nil {
		return nil, err
	}
	live := schema.NodeLive{Version: o.Version, Started: o.Started.UTC().Round(0)}
	if f.presence, err = f.writer.Presence(o.Name, live, o.Lease); err != nil {
		return nil, err
	}
	f.presence.Report = f.report
	return f, nil
}

// Source returns the source of the fleet's services.
func (f *Member) Source() *watch.Source { return f.source }

// Reached returns the newest revision of the store that the snapshot at revision represents.
func (f *Member) Reached(revision int64) int64 {
	if f != nil {
		if at := f.source.Position(); at.Published == revision {
			return at.Seen // later changes did not affect the state
		}
	}
	return revision
}

// Nodes returns all nodes of the fleet from etcd.
func (f *Member) Nodes(ctx context.Context) ([]fleet.Node, error) { return f.writer.Statuses(ctx) }

// Problems returns the reasons why the fleet does not see this node. The store itself reports that
// etcd is unavailable.
func (f *Member) Problems(connected bool) []balancer.Problem {
	if f == nil || !connected {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	warn := func(key, text string, err error) []balancer.Problem {
		return []balancer.Problem{{Severity: balancer.SeverityWarning, Origin: balancer.Origin{Key: f.o.Config.Prefix + key}, Text: text + err.Error()}}
	}
	if f.trouble != nil {
		return warn("/nodes/"+f.o.Name+"/live", "the fleet does not see this node: ", f.trouble)
	}
	if err := f.presence.Unpublished(); err != nil {
		return warn("/hosts/"+f.o.Name, "other nodes might accept services with this node's addresses, and then can't reach this node: ", err)
	}
	return nil
}

// Run publishes this node's status until ctx is done. It calls the function look for the current
// view, and publishes the status whenever it has changed.
func (f *Member) Run(ctx context.Context, look func() *status.View) error {
	if f == nil {
		return nil
	}
	defer func() { _ = f.writer.Close() }() // a failure does not matter here
	var present sync.WaitGroup
	defer present.Wait()
	present.Go(func() { f.presence.Run(ctx) })
	pause := time.NewTicker(time.Second) // the status is published at most once a second
	defer pause.Stop()
	var published writtenStatus
	draining := false // the connection counts of drains change without a notification
	for {
		v := look()
		if now := (writtenStatus{v.State, v.Sync, v.Mode, f.source.Position(), fmt.Sprint(v.LiveProblems())}); v.State.Complete && (now != published || draining) {
			status := f.status(v)
			published, draining = now, len(status.Drains) > 0
			f.presence.SetStatus(status)
		}
		f.publish(v.State)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// If this node's addresses or allowed endpoints have changed, publish sends them to the other
// nodes.
func (f *Member) publish(s *model.State) {
	sources := f.o.Sources()
	if !s.Complete || s == f.publishedOf && slices.Equal(sources, f.sources) {
		return
	}
	f.publishedOf, f.sources = s, sources
	next := balancer.Node{Addresses: balancer.PublishedAddresses(&s.Env, &s.Inputs, sources), AllowedEndpoints: s.Env.AllowedEndpoints}
	if f.published != nil && f.published.Equal(next) {
		return
	}
	f.presence.Publish(next)
	f.published = &next
}

// writtenStatus holds the inputs from which a status is built. If they are unchanged and no
// endpoint drains, the status is not published again.
type writtenStatus struct {
	state    *model.State
	engine   *dataplane.Status
	mode     *modeswitch.Chosen
	position watch.Position
	problems string // problems that appear and disappear without another change
}

// status returns the status that this node publishes.
func (f *Member) status(v *status.View) schema.NodeStatus {
	s := v.State
	out := schema.NodeStatus{
		At: time.Now().UTC().Round(time.Second), Version: f.o.Version, Zone: s.Config.Zone,
		Mode: string(v.Mode.Name), Wanted: string(s.Config.Mode), Why: v.Mode.Reason, Fallback: v.Mode.Fallback,
		Revision: v.Applied(), Ready: v.Ready(), Services: s.Snapshot.Services.Len(), Frontends: s.Desired.Frontends.Len(),
		Pending: v.Pending(), Failing: len(v.Sync.Failing),
	}
	for _, service := range s.Snapshot.Services.All() {
		out.Endpoints += len(balancer.EndpointsOf(service, &s.Inputs))
	}
	problems := v.Problems()
	out.ProblemCount = len(problems)
	for i := range problems[:min(len(problems), schema.MaxNodeProblems)] {
		out.Problems = append(out.Problems, problems[i].String())
	}
	out.Drains = drainsOf(v)
	return out
}

// drainsOf lists the draining endpoints with the number of live connections that each has on this
// node.
func drainsOf(v *status.View) []schema.NodeDrain {
	type place struct { // connections are counted per port, for all VIPs together
		traffic.Port
		at netip.AddrPort
	}
	known, active := map[place]bool{}, map[balancer.Target]uint64{}
	for _, f := range v.State.Desired.Frontends.All() {
		port := traffic.Port{Service: f.Service, Name: f.Port}
		for _, b := range f.Backends {
			if p := (place{port, b.Addr}); b.Drains() && !known[p] {
				known[p] = true
				active[f.Target(b)] += v.Active(port, b.Addr)
			}
		}
	}
	var all []schema.NodeDrain
	for _, t := range slices.SortedFunc(maps.Keys(active), balancer.Target.Compare) {
		all = append(all, schema.NodeDrain{Service: t.Service, Address: t.Address(), Active: active[t]})
	}
	return all
}
