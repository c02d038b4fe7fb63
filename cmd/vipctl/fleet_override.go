package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/wording"
	"vipd/store/etcd/schema"
)

// fleetOverride changes overrides in etcd, where they apply to all nodes.
type fleetOverride struct {
	*cli.Call
	request api.OverrideRequest
	lookup.Place
	targets []balancer.Target
	// own lists endpoints on the requested node that belong to services in this host's files.
	own []string
	// resolved maps each lookup (SERVICE/NAME) to whether this host's daemon knows its endpoints.
	resolved map[string]bool
	result   fleetResult
}

// newFleetOverride finds the endpoints in etcd that the request selects. It returns nil if etcd
// does not have the requested service, and neither --etcd nor VIPCTL_ETCD is set.
func newFleetOverride(c *cli.Call, q api.OverrideRequest) (*fleetOverride, error) {
	w, err := c.Etcd()
	if err != nil {
		return nil, err
	}
	s, err := w.Read(c, nil)
	if err != nil {
		socket := "--socket PATH"
		if c.NamesEtcd() {
			socket += " instead of --etcd"
		}
		return nil, fmt.Errorf("%w; while etcd is unreachable, \"vipctl %s\" with %s makes the change only in this host's daemon", err, c.Verb.Name, socket)
	}
	if !c.NamesEtcd() && q.Node == "" && !s.Services.Has(q.Service) {
		return nil, nil
	}
	f := &fleetOverride{
		Call: c, request: q,
		Place:    lookup.Place{Inputs: &balancer.Inputs{Services: s.Services, Endpoints: s.Endpoints, Overrides: s.Overrides}, Name: " in etcd"},
		resolved: map[string]bool{},
	}
	f.addKept()
	if f.targets, err = f.Targets(&q); err == nil {
		err = lookup.CheckCapacity(f.Inputs, &q, f.targets)
	}
	if err != nil || q.Node != "" { // an address that was found needs no DNS name
		f.noteUnresolved()
	}
	return f, err
}

// noteUnresolved prints the lookups of the requested service or node whose endpoints are unknown
// here. The override does not include these endpoints.
func (f *fleetOverride) noteUnresolved() {
	var unresolved []string
	for name, s := range f.Services.All() {
		if f.request.Node == "" && name != f.request.Service {
			continue
		}
		for l := range balancer.LookupsOf(s, f.Inputs) {
			onNode := func(e balancer.Endpoint) bool { return e.Name == l.Name && e.Node == f.request.Node }
			place := string(name) + "/" + l.String()
			if !f.resolved[place] && (f.request.Node == "" || slices.ContainsFunc(s.Endpoints, onNode)) { // endpoints that a lookup finds have no node
				unresolved = append(unresolved, place)
			}
		}
	}
	if unresolved != nil {
		slices.Sort(unresolved)
		f.Hint("the endpoints at %s are not changed, because no vipd on this host knows their addresses: run \"vipctl %s\" on a host whose vipd serves them",
			wording.Some(unresolved, 8), f.Verb.Name)
	}
}

// addKept adds details from this host's daemon: endpoints that are down, answers from agents, and
// endpoints with expired leases that the daemon still uses. It also sets own and resolved. If the
// daemon does not answer, it adds nothing.
func (f *fleetOverride) addKept() {
	services, _ := cli.AskDaemon(f.Call, (*api.Client).Services)
	for _, s := range services {
		shared := f.Services.At(s.Name)
		for _, e := range s.Endpoints {
			if s.Origin.Key == "" && f.request.Node != "" && e.Node == f.request.Node {
				f.own = append(f.own, string(e.Service)+"/"+e.Address)
			}
		}
		if shared == nil || s.Origin.Key == "" {
			continue
		}
		for _, l := range s.Lookups {
			f.resolved[string(s.Name)+"/"+l.Name] = l.Endpoints > 0
		}
		for _, e := range s.Endpoints {
			t, err := balancer.ParseTarget(s.Name, e.Address)
			if err == nil && e.State == balancer.Down {
				f.Inputs.Health = f.Inputs.Health.Set(t, balancer.HealthDown)
			}
			if err == nil && e.Agent != nil {
				f.Inputs.Agents = f.Inputs.Agents.Set(t, *e.Agent)
			}
			if err != nil || e.Configured == 0 || len(f.Endpoints(t)) > 0 {
				continue
			}
			kept := &balancer.Endpoint{Address: t.Addr, Name: e.Name, Node: e.Node, Weight: e.Configured}
			if !slices.ContainsFunc(shared.Ports, func(p balancer.Port) bool { return kept.TargetPort(&p) == t.Port }) {
				kept.Port = t.Port
			}
			f.Inputs.Endpoints = f.Inputs.Endpoints.Set(balancer.EndpointID{Service: s.Name, ID: e.Address}, kept)
		}
	}
}

// fleetResult is the result of a change to overrides in etcd.
type fleetResult struct {
	api.OverrideResult
	// Revision is the last write's revision, at which all changes are in effect.
	Revision int64 `json:"revision"`
}

// override makes the change for each target in turn. If a target can't be written, it continues
// with the next target.
func (f *fleetOverride) override(describe func(api.OverrideTarget) string) error {
	change, err := lookup.Asked(&f.request, f.Now())
	if err != nil {
		return err
	}
	r := &f.result
	var errs []error
	for _, t := range f.targets {
		next, revision, err := f.set(t, change)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t, err))
			continue
		}
		r.Revision = max(r.Revision, revision)
		r.Targets = append(r.Targets, api.OverrideTarget{Service: t.Service, Address: t.Address(), Override: next})
	}
	if len(f.own) > 0 {
		f.Hint("endpoints of services in this host's files were not changed: %s; to change them, use --socket %s instead of --etcd with \"vipctl %s\"",
			wording.Some(f.own, 8), f.socketWords(), f.Verb.Name)
	}
	errs = append(errs, f.Show(*r, func() string { return targetLines(r.Targets, describe) + waitText(r.Revision) }))
	noteName(f.Call, &f.request, r.Targets)
	if f.request.Draining != nil && !*f.request.Draining {
		f.noteLocalDrains()
	}
	if f.request.Draining != nil && !*f.request.Draining && lookup.HostName(f.request.Address) != "" {
		var all []api.OverrideTarget
		for t, o := range f.Overrides.All() {
			all = append(all, api.OverrideTarget{Service: t.Service, Address: t.Address(), Override: o})
		}
		noteFormerDrains(f.Call, &f.request, all, func(at api.OverrideTarget) bool {
			t, err := balancer.ParseTarget(at.Service, at.Address)
			return err != nil || len(f.Endpoints(t)) > 0
		})
	}
	return errors.Join(errs...)
}

// socketWords returns the path of the daemon's socket for a recommended command, or PATH if it is
// unknown.
func (f *fleetOverride) socketWords() string {
	socket, err := f.Socket()
	if err != nil {
		return "PATH"
	}
	return socket
}

// waitText explains how to wait for a revision, or returns "" if the revision is 0.
func waitText(revision int64) string {
	if revision == 0 {
		return ""
	}
	return fmt.Sprintf("revision %d; \"vipctl wait --revision %[1]d\" returns when the change is in effect on all hosts\n", revision)
}

// set changes one target's override. It returns the new override and the revision of the last
// write.
func (f *fleetOverride) set(t balancer.Target, change balancer.Override) (next *balancer.Override, revision int64, err error) {
	for _, e := range balancer.OverrideEdits(f.Overrides, t, change, f.Endpoints(t), f.Services.At(t.Service).HasAgent()) {
		var result *balancer.Override
		r, err := f.Writer.EditOverride(f, e.Target, func(old balancer.Override) *balancer.Override {
			if still := old.Unexpired(f.Now()); still != nil { // nodes only read, so an expired override stays in etcd
				result = e.Next(*still)
			} else {
				result = e.Next(balancer.Override{})
			}
			return cmp.Or(result, change.Note(old))
		})
		if err != nil {
			return next, revision, err
		}
		if revision = max(revision, r.Revision); e.Target == t {
			next = result
		}
	}
	return next, revision, nil
}

// noteLocalDrains prints the targets that this host's daemon drains because of a local override,
// which is not in etcd. If the daemon does not answer, it prints nothing.
func (f *fleetOverride) noteLocalDrains() {
	endpoints, _ := cli.AskDaemon(f.Call, (*api.Client).Endpoints)
	for _, t := range f.targets {
		if slices.ContainsFunc(endpoints, func(e api.Endpoint) bool {
			return e.Service == t.Service && isAt(e.Address, t.Address()) && f.drainedHere(e)
		}) {
			f.Hint("this host's daemon drains %s independently of etcd: \"vipctl undrain %s %s --socket %s\" ends that drain", t, t.Service, t.Address(), f.socketWords())
		}
	}
}

// drainedHere reports whether an endpoint drains because of this host's local override instead of
// an override in etcd.
func (f *fleetOverride) drainedHere(e api.Endpoint) bool {
	o := e.Override
	t, err := balancer.ParseTarget(e.Service, e.Address)
	if err != nil || !o.Drains() {
		return false
	}
	shared := balancer.OverrideOf(f.Inputs, t)
	if !shared.Drains() {
		return true
	}
	_, here := o.Signatures()
	_, inEtcd := shared.Signatures()
	return here != inEtcd
}

func (f *fleetOverride) undrained(target api.OverrideTarget) string {
	t, _ := balancer.ParseTarget(target.Service, target.Address) // the target was already parsed
	var overrides []*balancer.Override
	address := balancer.Target{Service: t.Service, Addr: t.Addr}
	for at, o := range f.Overrides.While(address, func(at balancer.Target) bool { return at.Service == t.Service && at.Addr == t.Addr }) {
		if at.Port == 0 || t.Port == 0 || at.Port == t.Port {
			overrides = append(overrides, o)
		}
	}
	drained := slices.ContainsFunc(overrides, (*balancer.Override).Drains) || slices.ContainsFunc(f.Endpoints(t), func(e *balancer.Endpoint) bool { return e.Draining })
	return undrainedText(target, f.Services.At(t.Service).HasAgent(), drained, overrides)
}

func (f *fleetOverride) schedulers() map[balancer.Name]balancer.Scheduler {
	by := map[balancer.Name]balancer.Scheduler{}
	for _, t := range f.targets {
		if s := f.Services.At(t.Service); s != nil {
			by[s.Name] = s.Scheduler
		}
	}
	return by
}

func (f *fleetOverride) await() error {
	v := &revisionWait{revision: f.result.Revision, drains: func(d schema.NodeDrain) bool {
		return slices.ContainsFunc(f.targets, func(t balancer.Target) bool { return isDrain(t, d) })
	}}
	watcher, last := &watcher{progress: progress{Printer: f.Printer}}, uint64(0)
	lag, err := v.poll(f.Call, func(lag []laggard) {
		last = left(lag)
		watcher.show(lag)
	})
	watcher.end()
	if err == nil && len(v.left) > 0 {
		f.Note("no longer waiting for removed nodes: %s", strings.Join(v.left, ", "))
	}
	return printOutcome(f.Call, err, f.result.Targets, last, names(lag), " on "+wording.Count(len(v.done), "node"))
}

// isDrain reports whether d drains the target t, or one of its ports.
func isDrain(t balancer.Target, d schema.NodeDrain) bool {
	return d.Service == t.Service && isAt(d.Address, t.Address())
}
