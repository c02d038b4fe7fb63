package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/store/etcd"
)

// writtenVIP are the settings of an address as a file has them.
type writtenVIP struct {
	fields map[string]any
	where  balancer.Locator
	// unknown are the fields that this version does not know.
	unknown []balancer.Problem
}

// defineVIP takes in the settings of one address.
func (g *given) defineVIP(name string, raw any, where balancer.Locator) {
	path := decode.Join("vips", name)
	fields, ok := raw.(map[string]any)
	if !ok {
		g.problem(where(""), "", path, "needs a table: ["+path+"]")
		return
	}
	_, lenient := balancer.DecodeVIP(name, fields, where, balancer.SeverityWarning)
	_, strict := balancer.DecodeVIP(name, fields, where, balancer.SeverityError)
	w := &writtenVIP{fields: fields, where: where, unknown: unknownFields(lenient, strict)}
	for _, p := range lenient {
		if !slices.Contains(w.unknown, p) {
			g.problems = append(g.problems, inTable(path, p))
		}
	}
	addr, err := decode.ParseAddr(name)
	if err != nil {
		return // which is among the problems
	}
	if other, twice := g.vips[addr]; twice {
		g.problem(where(""), "", path, "is defined already, at "+origin(other.where("")))
		return
	}
	g.vips[addr] = w
}

// inTable is a problem with a field of the table at path.
func inTable(path string, p balancer.Problem) balancer.Problem {
	if p.Field == "" {
		p.Field = path
	} else {
		p.Field = path + "." + p.Field
	}
	return p
}

// vipIntent is what is to become of the settings of one address, and then what became of them.
type vipIntent struct {
	Addr netip.Addr `json:"vip"`
	What outcome    `json:"what"`
	// Revision is that of the write, or of the settings that are there already; 0 means nothing is written yet.
	Revision int64 `json:"revision,omitempty"`
	// Fields are those that differ.
	Fields []fieldDiff `json:"fields,omitempty"`

	fields map[string]any // nil means they are to be removed
}

// wantVIPs adds what is to become of settings of addresses. Where no file has any, and none are to be pruned, etcd's are not read.
func (e *edit) wantVIPs(g *given, prune, allowUnknown bool) error {
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
		for _, p := range w.unknown {
			if p = inTable(decode.Join("vips", addr.String()), p); allowUnknown {
				p.Text += "; it is written as it is"
			} else {
				p.Severity = balancer.SeverityError
				p.Text += "; --allow-unknown writes it as it is"
			}
			e.problems = append(e.problems, p)
		}
		i := &vipIntent{Addr: addr, What: createdService, fields: w.fields}
		if p := there[addr]; p != nil {
			if err := i.compare(p); err != nil {
				return err
			}
		}
		e.vips = append(e.vips, i)
	}
	for _, p := range stored {
		if prune && g.vips[p.Addr] == nil {
			e.vips = append(e.vips, &vipIntent{Addr: p.Addr, What: removedService})
		}
	}
	return nil
}

// compare says what becomes of settings that are there.
func (i *vipIntent) compare(p *etcd.StoredPolicy) (err error) {
	if p.Says(i.fields) {
		i.What, i.Revision = unchangedService, p.Revision
		return nil
	}
	i.What = updatedService
	i.Fields, err = compareFields(p.Fields, i.fields)
	return err
}

// writeVIPs writes the settings of addresses, one transaction each.
func (e *edit) writeVIPs() error {
	for n, i := range e.vips {
		if i.What == unchangedService {
			continue
		}
		r, err := e.writer.SetPolicy(e, i.Addr, i.fields, true)
		if err != nil {
			e.vips = e.vips[:n]
			return fmt.Errorf("settings of %s: %w; the changes listed above are done", i.Addr, err)
		}
		i.Revision = r.Revision
	}
	return nil
}
