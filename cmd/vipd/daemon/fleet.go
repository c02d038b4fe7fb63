package daemon

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/vipd/daemon/internal/chooser"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/tally"
	"vipd/cmd/vipd/daemon/internal/view"
	"vipd/dataplane"
	"vipd/store/etcd"
)

// fleet is this node as one of many: it follows what the fleet shares, and tells the fleet how it is.
//
//	PREFIX/services, endpoints, overrides   -> source -> model
//	PREFIX/nodes/NODE/config                -> source -> model: mode and zone
//	PREFIX/nodes/NODE/live, status          <- presence <- run, from views
type fleet struct {
	*Daemon
	source   *etcd.Source
	writer   *etcd.Writer
	presence *etcd.Presence

	mu      sync.Mutex
	trouble error     // why the fleet does not see this node; nil: it does
	unseen  time.Time // since when that is so
	seen    bool      // it did at least once

	followed bool      // etcd was reached at least once
	lost     time.Time // when etcd was lost; zero: it is followed

	drains drainers
}

// leaseTime is how long after its end a node is still seen by others: three renewals may fail.
const leaseTime = 15 * time.Second

func newFleet(d *Daemon) (*fleet, error) {
	f := &fleet{Daemon: d}
	c := etcd.Config(d.config.Etcd)
	var err error
	f.source, err = etcd.New(etcd.Options{
		Config: c, StateDir: d.config.StateDir, Defaults: d.config.Defaults, Log: d.Log.With("component", "store"),
		Node: d.config.Node, Configured: func(nc etcd.NodeConfig) { d.model.Configure(nc) }, Connection: f.connection,
	})
	if err != nil {
		return nil, err
	}
	if f.writer, err = etcd.NewWriter(c); err != nil {
		return nil, err
	}
	live := etcd.NodeLive{Version: d.Version, Started: d.started.UTC().Round(0)}
	if f.presence, err = f.writer.Presence(d.config.Node, live, leaseTime); err != nil {
		return nil, err
	}
	f.presence.Report = f.report
	return f, nil
}

// Position is up to where the store was followed.
func (f *fleet) Position() etcd.Position { return f.source.Position() }

// Problems says why the fleet does not see this node. That etcd is away, the store says itself.
func (f *fleet) Problems(connected bool) []balancer.Problem {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.trouble == nil || !connected {
		return nil
	}
	return []balancer.Problem{{
		Severity: balancer.SeverityWarning, Origin: balancer.Origin{Key: f.config.Etcd.Prefix + "/nodes/" + f.config.Node + "/live"},
		Text: "the fleet does not see this node: " + f.trouble.Error(),
	}}
}

// run tells the fleet how this node is, whenever that has changed, until ctx ends.
func (f *fleet) run(ctx context.Context) error {
	defer func() { _ = f.writer.Close() }() // nothing is left to be done about it
	var present sync.WaitGroup
	defer present.Wait()
	present.Go(func() { f.presence.Run(ctx) })
	look := time.NewTicker(time.Second) // what is told changes no more often
	defer look.Stop()
	var told news
	for {
		if now := f.news(); f.model.State().Complete && (now != told || len(f.drains.keys) > 0) {
			told = now
			f.presence.Tell(f.status())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}

// news tells whether there is anything to tell: whoever has the same has told it all, but for the counts of drains.
type news struct {
	state    *model.State
	engine   *dataplane.Status
	mode     *chooser.Chosen
	position etcd.Position
}

func (f *fleet) news() news {
	return news{f.model.State(), f.engine.Status(), f.chooser.Serving(), f.source.Position()}
}

// status is what the fleet is told of this node.
func (f *fleet) status() etcd.NodeStatus {
	v := f.views.Look()
	s := v.State
	out := etcd.NodeStatus{
		At: time.Now().UTC().Round(time.Second), Version: f.Version, Zone: s.Config.Zone,
		Mode: string(v.Mode.Name), Wanted: string(s.Config.Mode), Why: v.Mode.Reason, Fallback: v.Mode.Fallback,
		Revision: v.Applied(), Ready: v.Ready(), Services: s.Snapshot.Services.Len(), Frontends: s.Desired.Frontends.Len(),
		Pending: v.Pending(), Failing: len(v.Sync.Failing),
	}
	for _, service := range s.Snapshot.Services.All() {
		out.Endpoints += len(balancer.EndpointsOf(service, &s.Inputs))
	}
	problems := v.Problems()
	out.ProblemCount = len(problems)
	for i := range problems[:min(len(problems), etcd.MaxNodeProblems)] {
		out.Problems = append(out.Problems, problems[i].String())
	}
	out.Drains = f.drains.counted(s.Desired, v)
	return out
}

// drainers are the frontends with endpoints that drain. Finding them again costs what has changed.
type drainers struct {
	seen snap.Map[balancer.Key, *balancer.Frontend]
	keys map[balancer.Key]bool
}

// counted lists the endpoints that drain, with their live connections on this node.
func (d *drainers) counted(desired balancer.Desired, v *view.View) []etcd.NodeDrain {
	if d.keys == nil {
		d.keys = map[balancer.Key]bool{}
	}
	for key, c := range snap.Diff(d.seen, desired.Frontends) {
		if c.HasNew && slices.ContainsFunc(c.New.Backends, balancer.Backend.Drains) {
			d.keys[key] = true
		} else {
			delete(d.keys, key)
		}
	}
	d.seen = desired.Frontends
	type place struct { // counts are of a port, whatever the VIP
		tally.Port
		at netip.AddrPort
	}
	known, active := map[place]bool{}, map[balancer.Target]uint64{}
	for key := range d.keys {
		f := desired.Frontends.At(key)
		port := tally.Port{Service: f.Service, Port: f.Port}
		for _, b := range f.Backends {
			if p := (place{port, b.Addr}); b.Drains() && !known[p] {
				known[p] = true
				active[f.Target(b)] += v.Active(port, b.Addr)
			}
		}
	}
	var all []etcd.NodeDrain
	for _, t := range slices.SortedFunc(maps.Keys(active), balancer.Target.Compare) {
		all = append(all, etcd.NodeDrain{Service: t.Service, Address: t.Address(), Active: active[t]})
	}
	return all
}
