package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/store/etcd"
)

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
