package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/balancer/snap"
	"vipd/cmd/internal/reserved"
	"vipd/store/etcd"
)

// outcome is what becomes of a service in etcd.
type outcome string

const (
	createdService   outcome = "created"
	updatedService   outcome = "updated"
	unchangedService outcome = "unchanged"
	removedService   outcome = "removed"
)

// intent is what is to become of one service, or of the settings of an address, and then what became of it.
type intent struct {
	Name balancer.Name `json:"service,omitempty"`
	VIP  netip.Addr    `json:"vip,omitzero"`
	What outcome       `json:"what"`
	// Revision is that of the write, or of the definition that is there already; 0 means nothing is written yet.
	Revision int64 `json:"revision,omitempty"`
	// Addresses are those that the service has been given by pools.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Fields are those that differ.
	Fields []fieldDiff `json:"fields,omitempty"`
	// Error is why it was not written.
	Error string `json:"error,omitempty"`

	stored *etcd.Stored   // nil means there is none
	fields map[string]any // nil means it is to be removed
	// service is what the fields come to, with the addresses that it holds already; where finds the places of the
	// fields; nil means they are in no file.
	service *balancer.Service
	where   balancer.Locator
}

func (i *intent) subject() string {
	if i.VIP.IsValid() {
		return i.VIP.String()
	}
	return string(i.Name)
}

// place is where a field is written; of what is not in a file, nowhere.
func (i *intent) place(field string) balancer.Origin {
	if i.where == nil {
		return balancer.Origin{}
	}
	return i.where(field)
}

// problem is an error in a field of the service.
func (i *intent) problem(field, format string, args ...any) balancer.Problem {
	return balancer.Problem{Severity: balancer.SeverityError, Origin: i.place(field), Service: i.Name, Field: field, Text: fmt.Sprintf(format, args...)}
}

// edit is a set of changes to the services in etcd: what there was when it began, and what is to become of it.
type edit struct {
	*call
	stored map[balancer.Name]*etcd.Stored
	// held says who holds which address of a pool. The revision is that of the last reading.
	held     map[netip.Addr]balancer.Name
	revision int64
	// nodes are what the live nodes publish; none if this user may not read it.
	nodes   snap.Map[balancer.NodeName, *balancer.Node]
	intents []*intent
	// vips are what is to become of settings of addresses.
	vips []*intent
	// problems are what is wrong with the changes.
	problems []balancer.Problem
	// rollback is the text of the history that is written again; 0 means none is.
	rollback int
}

// all are the intents of services, and then those of settings of addresses.
func (e *edit) all() []*intent { return slices.Concat(e.intents, e.vips) }

func (c *call) newEdit() (*edit, error) {
	if _, err := c.etcd(); err != nil {
		return nil, err
	}
	e := &edit{call: c}
	return e, e.read()
}

func (e *edit) read() error {
	d, err := e.writer.Definitions(e)
	if err != nil {
		return fmt.Errorf("reading the services: %w", err)
	}
	e.stored, e.held, e.revision = make(map[balancer.Name]*etcd.Stored, len(d.Services)), d.Held, d.Revision
	for _, s := range d.Services {
		e.stored[s.Name] = s
	}
	if e.nodes, err = e.writer.Published(e); err != nil && !etcd.Forbidden(err) {
		return fmt.Errorf("reading the addresses of the nodes: %w", err)
	}
	return nil
}

// services are those that etcd holds, as far as they can be read.
func (e *edit) services() map[balancer.Name]*balancer.Service {
	all := make(map[balancer.Name]*balancer.Service, len(e.stored))
	for name, s := range e.stored {
		if s.Service != nil {
			all[name] = withHeld(s.Service, e.held)
		}
	}
	return all
}

// want adds that a service is to have fields.
func (e *edit) want(name balancer.Name, fields map[string]any, service *balancer.Service, where balancer.Locator) error {
	i := &intent{Name: name, stored: e.stored[name], fields: fields, service: withHeld(service, e.held), where: where}
	if i.service != nil {
		i.Addresses = i.service.Allocated
	}
	switch {
	case i.stored == nil:
		i.What = createdService
	case i.stored.Says(fields) && lacksAddress(i.service):
		i.What = updatedService // by nothing but the addresses that it asks for
	case i.stored.Says(fields):
		i.What, i.Revision = unchangedService, i.stored.Revision
	default:
		i.What = updatedService
		var err error
		if i.Fields, err = changedFields(i.stored, fields); err != nil {
			return err
		}
	}
	e.intents = append(e.intents, i)
	return nil
}

// remove adds that a service is to go.
func (e *edit) remove(s *etcd.Stored) {
	e.intents = append(e.intents, &intent{Name: s.Name, What: removedService, stored: s})
}

// changedFields lists the fields of a service whose change makes a difference; all that read differently where that
// can't be told apart.
func changedFields(s *etcd.Stored, fields map[string]any) ([]fieldDiff, error) {
	if s.Service == nil {
		return nil, nil // what is there can't be read
	}
	all, err := compareFields(s.Fields, fields)
	if err != nil {
		return nil, err
	}
	some := slices.DeleteFunc(slices.Clone(all), func(d fieldDiff) bool {
		swapped := maps.Clone(s.Fields)
		if value, there := fields[d.Field]; there {
			swapped[d.Field] = value
		} else {
			delete(swapped, d.Field)
		}
		return s.Says(swapped)
	})
	if len(some) == 0 {
		return all, nil
	}
	return some, nil
}

// check adds what is wrong with the changes as a whole: that two services would claim the same, or that there are not
// enough addresses.
func (e *edit) check() error {
	e.problems = append(e.problems, e.takenVIPs(e.intents)...)
	short, err := e.shortages()
	if err != nil {
		return err
	}
	e.problems = append(e.problems, short...)
	for _, c := range contests(e.services(), e.intents) {
		e.problems = append(e.problems, c.problem())
	}
	for _, i := range e.intents {
		if i.service == nil || i.What == unchangedService {
			continue
		}
		for _, p := range balancer.Untrusted(i.service, reserved.New(reserved.Options{Endpoints: e.members}).All(), e.nodes) { // what hosts will not do for it
			p.Origin = i.place(p.Field)
			e.problems = append(e.problems, p)
		}
		if err := e.writer.Check(e, e.change(i), i.stored); err != nil {
			e.problems = append(e.problems, i.problem("", "%v", err))
		}
	}
	return nil
}

// defineVIP takes in the settings of one address.
func (g *given) defineVIP(name string, raw any, where balancer.Locator) {
	path := decode.Join("vips", name)
	fields, ok := raw.(map[string]any)
	if !ok {
		g.problem(where(""), "", path, "needs a table: ["+path+"]")
		return
	}
	_, problems := balancer.DecodeVIP(name, fields, where, balancer.SeverityWarning)
	for _, p := range problems {
		p.Field = strings.TrimSuffix(path+"."+p.Field, ".")
		g.problems = append(g.problems, p)
	}
	addr, err := decode.ParseAddr(name)
	if err != nil {
		return // which is among the problems
	}
	if other, twice := g.vips[addr]; twice {
		g.problem(where(""), "", path, "is defined already, at "+origin(other.where("")))
		return
	}
	g.vips[addr] = &written{fields: fields, where: where}
}

// wantVIPs adds what is to become of settings of addresses. Where no file has any, and none are to be pruned, etcd's are not read.
func (e *edit) wantVIPs(g *given, prune bool) error {
	if len(g.vips) == 0 && !prune {
		return nil
	}
	stored, err := e.writer.Policies(e)
	if err != nil {
		return fmt.Errorf("reading the settings of addresses: %w", err)
	}
	there := map[netip.Addr]*etcd.StoredPolicy{}
	for _, p := range stored {
		there[p.Addr] = p
	}
	for _, addr := range slices.SortedFunc(maps.Keys(g.vips), netip.Addr.Compare) {
		w := g.vips[addr]
		i := &intent{VIP: addr, What: createdService, fields: w.fields}
		if p := there[addr]; p != nil && p.Says(w.fields) {
			i.What, i.Revision = unchangedService, p.Revision
		} else if p != nil {
			i.What = updatedService
			if i.Fields, err = compareFields(p.Fields, w.fields); err != nil {
				return err
			}
		}
		e.vips = append(e.vips, i)
	}
	for _, p := range stored {
		if prune && g.vips[p.Addr] == nil {
			e.vips = append(e.vips, &intent{VIP: p.Addr, What: removedService})
		}
	}
	return nil
}

// writeVIPs writes the settings of addresses, one transaction each.
func (e *edit) writeVIPs() error {
	for n, i := range e.vips {
		if i.What == unchangedService {
			continue
		}
		r, err := e.writer.SetPolicy(e, i.VIP, i.fields, true)
		if err != nil {
			e.vips = e.vips[:n]
			return fmt.Errorf("settings of %s: %w; the changes listed above are done", i.VIP, err)
		}
		i.Revision = r.Revision
	}
	return nil
}
