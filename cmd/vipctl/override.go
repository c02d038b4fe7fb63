package main

import (
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// overrider changes overrides: the daemon of this host, for itself alone, or etcd, for all nodes.
type overrider interface {
	// override makes the change, and prints a line for each endpoint that it met: what said says of it.
	override(said func(api.OverrideTarget) string) error
	// undrained says what the end of a drain came to for a target.
	undrained(api.OverrideTarget) string
	// schedulers are those of the targets' services, as far as they are known.
	schedulers() map[balancer.Name]balancer.Scheduler
	// await returns when the targets have no connections and get no new ones.
	await() error
}

// overrider finds out what the request is for. That is the daemon where no etcd is named, and either the socket is, or
// services come from files, or the service of the request does.
func (c *call) overrider(q api.OverrideRequest) (overrider, error) {
	if c.overridesInEtcd() {
		if f, err := c.fleetOverride(q); f != nil || err != nil {
			return f, err
		}
	}
	d := &daemonOverride{call: c, request: q}
	if q.Draining == nil || *q.Draining {
		return d, nil
	}
	var err error
	d.before, err = askDaemon(c, (*api.Client).Endpoints)
	return d, err
}

// daemonOverride is a change of overrides by the daemon of this host.
type daemonOverride struct {
	*call
	request api.OverrideRequest
	// before are the endpoints before an undrain.
	before []api.Endpoint
	// targets are the endpoints that it met.
	targets []api.OverrideTarget
}

func (d *daemonOverride) override(said func(api.OverrideTarget) string) error {
	client, err := d.client()
	if err != nil {
		return err
	}
	q := &d.request
	r, err := client.Override(d, *q)
	if err != nil {
		return err
	}
	d.targets = r.Targets
	err = d.show(r, func() string { return targetLines(r.Targets, said) })
	if err == nil && (q.Draining != nil && *q.Draining || q.Weight != nil && *q.Weight == 0) {
		d.noteIdle()
	}
	return err
}

// targetLines are the lines on targets of a change.
func targetLines(targets []api.OverrideTarget, said func(api.OverrideTarget) string) string {
	return strings.Join(mapped(targets, func(t api.OverrideTarget) string {
		return fmt.Sprintf("%s/%s: %s\n", t.Service, t.Address, said(t))
	}), "")
}

// noteIdle says which of the targets' services have no endpoint any more that takes new connections. Where the daemon
// does not answer, there is no note.
func (d *daemonOverride) noteIdle() {
	s, _ := askDaemon(d.call, (*api.Client).Status)
	for _, p := range s.Problems {
		if p.Kind == balancer.Idle && d.meets(p.Service) {
			d.hint("service %s: %s", p.Service, p.PortText())
		}
	}
}

// meets reports whether the change met an endpoint of a service.
func (d *daemonOverride) meets(service balancer.Name) bool {
	return slices.ContainsFunc(d.targets, func(t api.OverrideTarget) bool { return t.Service == service })
}

func (d *daemonOverride) schedulers() map[balancer.Name]balancer.Scheduler {
	frontends, _ := askDaemon(d.call, (*api.Client).Frontends)
	by := map[balancer.Name]balancer.Scheduler{}
	for _, f := range frontends {
		if d.meets(f.Service) {
			by[f.Service] = f.Scheduler
		}
	}
	return by
}

func (d *daemonOverride) undrained(t api.OverrideTarget) string {
	at := slices.DeleteFunc(slices.Clone(d.before), func(e api.Endpoint) bool { return e.Service != t.Service || !isAt(e.Address, t.Address) })
	said := mapped(at, func(e api.Endpoint) *balancer.Override { return e.Override })
	draining := func(e api.Endpoint) bool { return e.State == balancer.Draining || e.Override.Drains() }
	return undrainedText(t, len(at) == 0 || slices.ContainsFunc(at, draining), said)
}

// undrainedText says what the end of a drain came to for a target, whether it drained or not, with the overrides that it
// had before.
func undrainedText(t api.OverrideTarget, drained bool, said []*balancer.Override) string {
	text := "drain taken back"
	if !drained {
		text = "it was not draining"
	}
	if i := slices.IndexFunc(said, func(o *balancer.Override) bool { return o != nil && o.Weight != nil }); i >= 0 {
		text += fmt.Sprintf("; the weight %d that was set by hand stays: \"vipctl weight %s %s -\" takes it back", *said[i].Weight, t.Service, t.Address)
	}
	return text
}
