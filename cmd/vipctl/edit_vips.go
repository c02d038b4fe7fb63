package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"vipd/store/etcd/definitions"
)

// wantVIPs adds the changes to VIP settings. It reads etcd only if a file contains VIP settings, or
// if prune is true.
func (e *edit) wantVIPs(g *given, prune bool) error {
	if len(g.vips) == 0 && !prune {
		return nil
	}
	stored, err := e.Writer.Policies(e)
	if err != nil {
		return fmt.Errorf("reading address settings: %w", err)
	}
	current := map[netip.Addr]*definitions.StoredPolicy{}
	for _, p := range stored {
		current[p.Addr] = p
	}
	for _, addr := range slices.SortedFunc(maps.Keys(g.vips), netip.Addr.Compare) {
		w := g.vips[addr]
		i := &edited{VIP: addr, What: definitions.Created, settings: w.fields}
		if p := current[addr]; p != nil && p.Matches(w.fields) {
			i.What, i.Revision = definitions.Unchanged, p.Revision
		} else if p != nil {
			i.What = definitions.Updated
			if i.Fields, err = compareFields(p.Fields, w.fields); err != nil {
				return err
			}
		}
		e.vips = append(e.vips, i)
	}
	for _, p := range stored {
		if prune && g.vips[p.Addr] == nil {
			e.vips = append(e.vips, &edited{VIP: p.Addr, What: definitions.Removed})
		}
	}
	return nil
}

// writeVIPs writes the VIP settings, one transaction per VIP.
func (e *edit) writeVIPs() error {
	for n, i := range e.vips {
		if i.What == definitions.Unchanged {
			continue
		}
		r, err := e.Writer.SetPolicy(e, i.VIP, i.settings, true)
		if err != nil {
			e.vips = e.vips[:n]
			return fmt.Errorf("settings of %s: %w; the changes listed above are done", i.VIP, err)
		}
		i.Revision = r.Revision
	}
	return nil
}
