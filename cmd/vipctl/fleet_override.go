package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/store"
	"vipd/store/etcd"
)

// fleetOverride is a change of overrides in etcd, which all nodes follow.
type fleetOverride struct {
	*call
	writer  *etcd.Writer
	request api.OverrideRequest
	before  store.Snapshot
	inputs  balancer.Inputs
	targets []balancer.Target
}

// fleetOverride finds out whether what is asked for is about endpoints in etcd, and about which. It is nil where the
// daemon is to be asked: no etcd is named, and either the socket is, or services come from files, or the service of the
// request does.
func (c *call) fleetOverride(q api.OverrideRequest) (*fleetOverride, error) {
	if !c.overridesFleet() {
		return nil, nil
	}
	w, err := c.fleet()
	if err != nil {
		return nil, err
	}
	s, err := w.Read(c, nil)
	if err != nil {
		return nil, err
	}
	if !c.etcdNamed() && q.Node == "" && !s.Services.Has(q.Service) {
		return nil, nil
	}
	f := &fleetOverride{
		call: c, writer: w, request: q, before: s,
		inputs: balancer.Inputs{Services: s.Services, Endpoints: s.Endpoints, Overrides: s.Overrides},
	}
	f.targets, err = f.find()
	return f, err
}

// overridesFleet reports whether overrides of services in etcd go to etcd.
func (c *call) overridesFleet() bool {
	return c.etcdNamed() || c.flags.String("socket") == "" && c.fleetStore()
}

// fleetAddresses are those of a service's endpoints in etcd; none if it does not answer.
func (c *call) fleetAddresses(name balancer.Name) (out []string) {
	w, err := c.fleet()
	if err != nil {
		return nil
	}
	s, err := w.Read(c, nil)
	if err != nil {
		return nil
	}
	if service := s.Services.At(name); service != nil {
		for _, e := range balancer.EndpointsOf(service, &balancer.Inputs{Endpoints: s.Endpoints}) {
			out = append(out, e.Address.String())
		}
	}
	return out
}

// find lists the targets of the request.
func (f *fleetOverride) find() ([]balancer.Target, error) {
	q := &f.request
	if q.Node != "" {
		return f.onNode()
	}
	service, ok := f.before.Services.Get(q.Service)
	if !ok {
		var names []string
		for n := range f.before.Services.Keys() {
			names = append(names, string(n))
		}
		return nil, fmt.Errorf("there is no service %q in etcd%s", q.Service, hint(string(q.Service), names))
	}
	t, err := balancer.ParseTarget(q.Service, q.Address)
	if err != nil {
		return nil, wrongUse("%v", err)
	}
	if len(f.endpointsAt(t)) > 0 || f.before.Overrides.Has(t) { // an endpoint may be gone, and what was said of it not
		return []balancer.Target{t}, nil
	}
	var known []string
	for _, e := range balancer.EndpointsOf(service, &f.inputs) {
		for i := range service.Ports {
			known = append(known, netip.AddrPortFrom(e.Address, e.TargetPort(&service.Ports[i])).String())
		}
	}
	return nil, fmt.Errorf("service %s has no endpoint %s; it has %s", q.Service, q.Address, some(known))
}

// onNode lists every endpoint on the node, of all services.
func (f *fleetOverride) onNode() (targets []balancer.Target, err error) {
	var nodes []string
	for _, service := range f.before.Services.All() {
		for _, e := range balancer.EndpointsOf(service, &f.inputs) {
			if e.Node == f.request.Node {
				targets = append(targets, targetsAt(service, e)...)
			} else if e.Node != "" {
				nodes = append(nodes, e.Node)
			}
		}
	}
	if targets == nil {
		return nil, fmt.Errorf("no endpoint in etcd is on node %q: endpoints say where they run in their field node%s", f.request.Node, hint(f.request.Node, nodes))
	}
	slices.SortFunc(targets, balancer.Target.Compare)
	return slices.Compact(targets), nil
}

// targetsAt names one endpoint: by its address alone where that has no port of its own, else at each of the service's
// ports, for another endpoint may be at the same address.
func targetsAt(service *balancer.Service, e *balancer.Endpoint) (targets []balancer.Target) {
	if e.Port == 0 && len(e.Ports) == 0 {
		return []balancer.Target{{Service: service.Name, Addr: e.Address}}
	}
	for i := range service.Ports {
		targets = append(targets, balancer.Target{Service: service.Name, Addr: e.Address, Port: e.TargetPort(&service.Ports[i])})
	}
	return targets
}

// endpointsAt returns the endpoints that a target names.
func (f *fleetOverride) endpointsAt(t balancer.Target) (at []*balancer.Endpoint) {
	service := f.before.Services.At(t.Service)
	if service == nil {
		return nil
	}
	for _, e := range balancer.EndpointsOf(service, &f.inputs) {
		serves := slices.ContainsFunc(service.Ports, func(p balancer.Port) bool { return e.TargetPort(&p) == t.Port })
		if e.Address == t.Addr && (t.Port == 0 || serves) {
			at = append(at, e)
		}
	}
	return at
}

// some joins words for a sentence, and leaves out the rest of long lists.
func some(words []string) string {
	const most = 8
	if len(words) == 0 {
		return "none"
	}
	text := strings.Join(words[:min(len(words), most)], ", ")
	if more := len(words) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// fleetResult says what an override in etcd came to.
type fleetResult struct {
	api.OverrideResult
	// Revision is the last of the writes: what nodes must have applied for all of it to be in effect.
	Revision int64 `json:"revision"`
}

// write carries the change out, target by target, and prints a line for each: what done says of it. Where one can't be
// written, the others are.
func (f *fleetOverride) write(done func(balancer.Target) string) (r fleetResult, err error) {
	change := balancer.Override{Weight: f.request.Weight, Draining: f.request.Draining, By: f.request.By, Reason: f.request.Reason}
	now := f.now().UTC().Round(0)
	if f.request.Timeout > 0 {
		change.Until = now.Add(f.request.Timeout)
	}
	if f.request.Expires > 0 {
		change.Expires = now.Add(f.request.Expires)
	}
	var b strings.Builder
	var errs []error
	for _, t := range f.targets {
		next, revision, err := f.set(t, change)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t, err))
			continue
		}
		r.Revision = max(r.Revision, revision)
		r.Targets = append(r.Targets, api.OverrideTarget{Service: t.Service, Address: t.Address(), Override: next})
		fmt.Fprintf(&b, "%s: %s\n", t, done(t))
	}
	if f.format == formJSON {
		err = f.printJSON(r)
	} else {
		if r.Revision > 0 {
			fmt.Fprintf(&b, "revision %d; \"vipctl wait --revision %d\" returns when it is in effect on all hosts\n", r.Revision, r.Revision)
		}
		err = f.print(b.String())
	}
	return r, errors.Join(append(errs, err)...)
}

// set changes what is said of one target, and returns what that comes to. What is said of an address replaces what was
// said of its ports.
func (f *fleetOverride) set(t balancer.Target, change balancer.Override) (*balancer.Override, int64, error) {
	defined, wide := f.endpointsAt(t), &balancer.Override{}
	if t.Port != 0 {
		if w := f.before.Overrides.At(balancer.Target{Service: t.Service, Addr: t.Addr}); w != nil {
			wide = w
		}
	}
	var next *balancer.Override
	r, err := f.writer.EditOverride(f, t, func(old balancer.Override) *balancer.Override {
		next = joined(change, f.lasting(old), *wide, defined)
		return next
	})
	revision := r.Revision
	if err != nil || t.Port != 0 {
		return next, revision, err
	}
	for at := range f.before.Overrides.From(t) {
		if at.Service != t.Service || at.Addr != t.Addr {
			break
		}
		if at == t {
			continue
		}
		r, err := f.writer.EditOverride(f, at, func(old balancer.Override) *balancer.Override {
			old = f.lasting(old)
			if change.Weight != nil {
				old.Weight = nil
			}
			if change.Draining != nil {
				old.Draining, old.Until = nil, time.Time{}
			}
			return meaningful(old)
		})
		if err != nil {
			return next, revision, err
		}
		revision = max(revision, r.Revision)
	}
	return next, revision, nil
}

// lasting is what still holds of an override: nothing after its time, when it is in etcd still, for nodes only read.
func (f *fleetOverride) lasting(o balancer.Override) balancer.Override {
	if !o.Expires.IsZero() && !o.Expires.After(f.now()) {
		return balancer.Override{}
	}
	return o
}

// joined is change with what it leaves open taken from old, without what only repeats the endpoints' definition. Wide is
// what is said of the address as a whole.
func joined(change, old, wide balancer.Override, defined []*balancer.Endpoint) *balancer.Override {
	if change.Weight == nil {
		change.Weight = old.Weight
	}
	if change.Draining == nil {
		change.Draining, change.Until = old.Draining, old.Until
	}
	every := func(is func(*balancer.Endpoint) bool) bool {
		return !slices.ContainsFunc(defined, func(e *balancer.Endpoint) bool { return !is(e) })
	}
	if w := change.Weight; w != nil && wide.Weight == nil && every(func(e *balancer.Endpoint) bool { return e.Weight == *w }) {
		change.Weight = nil
	}
	if d := change.Draining; d != nil && !*d {
		change.Until = time.Time{}
		if wide.Draining == nil && every(func(e *balancer.Endpoint) bool { return !e.Draining }) {
			change.Draining = nil
		}
	}
	return meaningful(change)
}

// meaningful is nil for an override that says nothing.
func meaningful(o balancer.Override) *balancer.Override {
	if o.Weight == nil && o.Draining == nil {
		return nil
	}
	return &o
}

// drain is "drain" through etcd.
func (f *fleetOverride) drain(done string) error {
	r, err := f.write(func(balancer.Target) string { return done })
	if err != nil || !f.flags.Bool("wait") {
		return err
	}
	return f.await(&r)
}

// undrain is "undrain" through etcd.
func (f *fleetOverride) undrain() error {
	_, err := f.write(f.undrained)
	return err
}

// undrained says what the end of a drain came to for a target.
func (f *fleetOverride) undrained(t balancer.Target) string {
	var said []*balancer.Override
	for at, o := range f.before.Overrides.From(balancer.Target{Service: t.Service, Addr: t.Addr}) {
		if at.Service != t.Service || at.Addr != t.Addr {
			break
		}
		if at.Port == 0 || t.Port == 0 || at.Port == t.Port {
			said = append(said, o)
		}
	}
	drained := slices.ContainsFunc(said, func(o *balancer.Override) bool { return o.Draining != nil && *o.Draining })
	defined := f.endpointsAt(t)
	text := "drain taken back"
	if !drained && !slices.ContainsFunc(defined, func(e *balancer.Endpoint) bool { return e.Draining }) {
		text = "it was not draining"
	}
	i := slices.IndexFunc(said, func(o *balancer.Override) bool { return o.Weight != nil })
	if i >= 0 && len(defined) > 0 {
		text += fmt.Sprintf("; the weight %d that was set by hand stays: \"vipctl weight %s %s %d\" takes it back",
			*said[i].Weight, t.Service, t.Address(), defined[0].Weight)
	}
	return text
}

// weigh is "weight N" through etcd.
func (f *fleetOverride) weigh(n int) error {
	_, err := f.write(func(balancer.Target) string { return fmt.Sprintf("weight %d", n) })
	if err != nil || n == 0 {
		return err
	}
	noted := map[balancer.Name]bool{}
	for _, t := range f.targets {
		s := f.before.Services.At(t.Service)
		if s != nil && !noted[s.Name] && (s.Scheduler == balancer.RoundRobin || s.Scheduler == balancer.LeastConn) {
			noted[s.Name] = true
			f.noteUnweightedService(s.Name, s.Scheduler)
		}
	}
	return nil
}

// await returns when no node has a connection to the targets any more, and none makes new ones.
func (f *fleetOverride) await(r *fleetResult) error {
	v := &vigil{revision: r.Revision, drains: func(d etcd.NodeDrain) bool {
		return slices.ContainsFunc(f.targets, func(t balancer.Target) bool { return isDrain(t, d) })
	}}
	watcher := &watcher{call: f.call}
	lag, err := v.keep(f.call, f.writer, watcher.show)
	watcher.end()
	switch {
	case err != nil && f.Err() != nil:
		return f.abandoned(left(lag), names(lag))
	case err != nil:
		return fmt.Errorf("waiting for the drain, which stays in place: %w", err)
	}
	if len(v.gone) > 0 {
		f.note("not waited for, since they have gone away: %s", strings.Join(v.gone, ", "))
	}
	if f.format == formJSON {
		return nil
	}
	return f.print(fmt.Sprintf("drained: %s, no connections left on %s\n", count(len(f.targets), "endpoint"), count(len(v.done), "node")))
}

// isDrain reports whether what a node says of a drain is about the target, or a part of it.
func isDrain(t balancer.Target, d etcd.NodeDrain) bool {
	return d.Service == t.Service && isAt(d.Address, t.Address())
}
