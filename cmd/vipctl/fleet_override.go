package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/find"
	"vipd/store/etcd"
)

// fleetOverride is a change of overrides in etcd, which all nodes follow.
type fleetOverride struct {
	*call
	writer  *etcd.Writer
	request api.OverrideRequest
	find.Place
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
		socket := "--socket PATH"
		if c.etcdNamed() {
			socket += " in place of --etcd"
		}
		return nil, fmt.Errorf("%w; while etcd is away, \"vipctl %s\" with %s has the daemon of this host do it, for itself alone", err, c.verb.name, socket)
	}
	if !c.etcdNamed() && q.Node == "" && !s.Services.Has(q.Service) {
		return nil, nil
	}
	f := &fleetOverride{
		call: c, writer: w, request: q,
		Place: find.Place{Inputs: &balancer.Inputs{Services: s.Services, Endpoints: s.Endpoints, Overrides: s.Overrides}, Name: " in etcd"},
	}
	f.addKept()
	if f.targets, err = f.Targets(&q); err == nil {
		err = find.Spares(f.Inputs, &q, f.targets)
	}
	return f, err
}

// addKept adds the endpoints that the daemon of this host keeps in use although their leases have ended: etcd no longer has
// them, but nodes follow what it says of them. If the daemon does not answer, nothing is added.
func (f *fleetOverride) addKept() {
	client, err := f.daemon()
	if err != nil {
		return
	}
	services, err := client.Services(f)
	if err != nil {
		return
	}
	for _, s := range services {
		shared := f.Services.At(s.Name)
		if shared == nil || s.Origin.Key == "" {
			continue
		}
		for _, e := range s.Endpoints {
			t, err := balancer.ParseTarget(s.Name, e.Address)
			if err != nil || e.Configured == 0 || len(f.Endpoints(t)) > 0 {
				continue
			}
			kept := &balancer.Endpoint{Address: t.Addr, Node: e.Node, Weight: e.Configured}
			if !slices.ContainsFunc(shared.Ports, func(p balancer.Port) bool { return kept.TargetPort(&p) == t.Port }) {
				kept.Port = t.Port
			}
			f.Inputs.Endpoints = f.Inputs.Endpoints.Set(balancer.EndpointID{Service: s.Name, ID: e.Address}, kept)
		}
	}
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

// fleetResult says what an override in etcd came to.
type fleetResult struct {
	api.OverrideResult
	// Revision is the last of the writes: what nodes must have applied for all of it to be in effect.
	Revision int64 `json:"revision"`
}

// write carries the change out, target by target, and prints a line for each: what done says of it. Where one can't be
// written, the others are.
func (f *fleetOverride) write(done func(balancer.Target) string) (r fleetResult, err error) {
	change, err := find.Asked(&f.request, f.now())
	if err != nil {
		return r, err
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

// set changes what is said of one target, and returns what that comes to, and the revision of the last write.
func (f *fleetOverride) set(t balancer.Target, change balancer.Override) (next *balancer.Override, revision int64, err error) {
	for _, e := range balancer.OverrideEdits(f.Overrides, t, change, f.Endpoints(t)) {
		var is *balancer.Override
		r, err := f.writer.EditOverride(f, e.Target, func(old balancer.Override) *balancer.Override {
			is = e.Next(f.lasting(old))
			return cmp.Or(is, change.Note(old))
		})
		if err != nil {
			return next, revision, err
		}
		if revision = max(revision, r.Revision); e.Target == t {
			next = is
		}
	}
	return next, revision, nil
}

// lasting is what still holds of an override: nothing after its time, when it is in etcd still, for nodes only read.
func (f *fleetOverride) lasting(o balancer.Override) balancer.Override {
	if o.Lapsed(f.now()) {
		return balancer.Override{}
	}
	return o
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
	f.noteLocalDrains()
	return err
}

// noteLocalDrains says which of the targets the daemon of this host drains by itself: etcd does not know of that. Where the daemon
// can't be asked, there is no note.
func (f *fleetOverride) noteLocalDrains() {
	client, err := f.daemon()
	if err != nil {
		return
	}
	endpoints, err := client.Endpoints(f)
	if err != nil {
		return
	}
	socket, err := f.socket()
	if err != nil {
		socket = "PATH"
	}
	for _, t := range f.targets {
		if slices.ContainsFunc(endpoints, func(e api.Endpoint) bool {
			return e.Service == t.Service && isAt(e.Address, t.Address()) && f.drainedHere(e)
		}) {
			fmt.Fprintf(f.stderr, "note: the daemon of this host drains %s by itself: \"vipctl undrain %s %s --socket %s\" takes that back\n", t, t.Service, t.Address(), socket)
		}
	}
}

// drainedHere reports whether an endpoint drains by an override of its own host: by one that etcd did not have before.
func (f *fleetOverride) drainedHere(e api.Endpoint) bool {
	o := e.Override
	t, err := balancer.ParseTarget(e.Service, e.Address)
	if err != nil || o == nil || o.Draining == nil || !*o.Draining {
		return false
	}
	shared := balancer.OverrideOf(f.Inputs, t)
	return shared == nil || shared.Draining == nil || !*shared.Draining || shared.By != o.By || shared.Reason != o.Reason
}

// undrained says what the end of a drain came to for a target.
func (f *fleetOverride) undrained(t balancer.Target) string {
	var said []*balancer.Override
	for at, o := range f.Overrides.From(balancer.Target{Service: t.Service, Addr: t.Addr}) {
		if at.Service != t.Service || at.Addr != t.Addr {
			break
		}
		if at.Port == 0 || t.Port == 0 || at.Port == t.Port {
			said = append(said, o)
		}
	}
	drained := slices.ContainsFunc(said, func(o *balancer.Override) bool { return o.Draining != nil && *o.Draining })
	defined := f.Endpoints(t)
	drained = drained || slices.ContainsFunc(defined, func(e *balancer.Endpoint) bool { return e.Draining })
	return undrainedText(t.Service, t.Address(), drained, said)
}

// weigh is "weight N" through etcd.
func (f *fleetOverride) weigh(n int) error {
	_, err := f.write(func(balancer.Target) string { return weighed(n) })
	if err != nil || n <= 0 {
		return err
	}
	noted := map[balancer.Name]bool{}
	for _, t := range f.targets {
		s := f.Services.At(t.Service)
		if s != nil && !noted[s.Name] && !s.Scheduler.SharesByWeight() {
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
	watcher, last := &watcher{call: f.call}, uint64(0)
	lag, err := v.keep(f.call, f.writer, func(lag []laggard) {
		last = left(lag)
		watcher.show(lag)
	})
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
	return f.drained(len(f.targets), " on "+count(len(v.done), "node"), cut(r.Targets, last, f.now()))
}

// isDrain reports whether what a node says of a drain is about the target, or a part of it.
func isDrain(t balancer.Target, d etcd.NodeDrain) bool {
	return d.Service == t.Service && isAt(d.Address, t.Address())
}
