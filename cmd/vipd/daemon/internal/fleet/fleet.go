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
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
	"vipd/store/etcd/watch"
	"vipd/store/statedir"
)

// Member is this node as a member of a fleet. If nil, this node belongs to no fleet.
type Member struct {
	o        Options
	source   *watch.Source
	writer   *etcd.Store
	presence *fleet.Presence

	mu      sync.Mutex
	trouble error     // why the fleet does not see this node; nil means it does
	unseen  time.Time // since when that is so
	seen    bool      // it did at least once

	followed bool      // etcd was reached at least once
	lost     time.Time // when etcd was lost; zero means it is followed

	// set is what etcd last said of this node; nil before it said anything. It belongs to the source.
	set *schema.NodeConfig

	// What was published of this node's addresses belongs to Run: from which state and sources, and what it was.
	publishedOf *model.State
	sources     []netip.Addr
	published   *balancer.Node
}

// Options are what a Member is made from.
type Options struct {
	// Config is that of etcd, Name this node's.
	Config client.Config
	Name   string
	// StateDir keeps what was read last, for the time when etcd is away.
	StateDir *statedir.Dir
	// Defaults are the fields of services that don't set them; Source().SetDefaults exchanges them.
	Defaults map[string]any
	// Version and Started are told to the fleet.
	Version string
	Started time.Time
	// Lease is how long after its end this node is still seen by others.
	Lease  time.Duration
	Log    *slog.Logger
	Events *events.History
	// Configured is told what the fleet says of this node.
	Configured func(schema.NodeConfig)
	// Sources are the addresses from which this node sends. If nil, none is known.
	Sources func() []netip.Addr
}

// New returns a node that neither follows nor tells anything yet. The error says what can't be used of the configuration.
func New(o Options) (*Member, error) {
	if o.Sources == nil {
		o.Sources = func() []netip.Addr { return nil }
	}
	f := &Member{o: o}
	var err error
	f.source, err = watch.New(watch.Options{
		Config: o.Config, StateDir: o.StateDir, Defaults: o.Defaults, Log: o.Log, Node: o.Name, Configured: f.configured, Connection: f.connection,
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

// Source is where what the fleet shares comes from.
func (f *Member) Source() *watch.Source { return f.source }

// Reached is the newest revision of the store for which the snapshot of another one is complete.
func (f *Member) Reached(revision int64) int64 {
	if f != nil {
		if at := f.source.Position(); at.Published == revision {
			return at.Seen // what has changed since made no difference
		}
	}
	return revision
}

// Nodes returns all nodes of the fleet as etcd has them.
func (f *Member) Nodes(ctx context.Context) ([]fleet.Node, error) { return f.writer.Statuses(ctx) }

// Problems says why the fleet does not see this node. That etcd is away, the store says itself.
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
		return warn("/hosts/"+f.o.Name, "services may claim this node's addresses on other nodes, which then can't reach it: ", err)
	}
	return nil
}

// Run tells the fleet how this node is, by what look returns, whenever that has changed, until ctx ends.
func (f *Member) Run(ctx context.Context, look func() *status.View) error {
	if f == nil {
		return nil
	}
	defer func() { _ = f.writer.Close() }() // nothing is left to be done about it
	var present sync.WaitGroup
	defer present.Wait()
	present.Go(func() { f.presence.Run(ctx) })
	pause := time.NewTicker(time.Second) // what is told changes no more often
	defer pause.Stop()
	var told news
	draining := false // the connections that drains have left come and go without a change of all that
	for {
		v := look()
		if now := (news{v.State, v.Sync, v.Mode, f.source.Position(), fmt.Sprint(v.LiveProblems())}); v.State.Complete && (now != told || draining) {
			status := f.status(v)
			told, draining = now, len(status.Drains) > 0
			f.presence.Tell(status)
		}
		f.publish(v.State)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// publish tells the other nodes which addresses are this node's own, if that has changed.
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

// news reports whether the status differs from the last one written; counts of drains alone are no difference.
type news struct {
	state    *model.State
	engine   *dataplane.Status
	mode     *modeswitch.Chosen
	position watch.Position
	problems string // those that come and go without a change of the rest
}

// status is what the fleet is told of this node.
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

// drainsOf lists the endpoints that drain, with their live connections on this node.
func drainsOf(v *status.View) []schema.NodeDrain {
	type place struct { // counts are of a port, whatever the VIP
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
