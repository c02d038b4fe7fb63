package main

import (
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
)

// diffFleet compares files with what etcd holds: what apply would change.
func (c *call) diffFleet(places []string) error {
	g, err := c.readGiven(places, c.flags.Bool("recursive"))
	if err != nil {
		return err
	}
	e, err := c.newEdit()
	if err != nil {
		return err
	}
	bad := map[balancer.Name]bool{}
	for _, p := range g.problems {
		if !isError(p) {
			continue
		}
		if p.Service == "" {
			return fmt.Errorf("%s can't be compared: %s", strings.Join(places, ", "), p)
		}
		c.note("not compared: %s", p)
		bad[p.Service] = true
	}
	for _, name := range g.names() {
		if w := g.services[name]; !bad[name] {
			if err := e.want(name, w.fields, w.service, w.where); err != nil {
				return err
			}
		}
	}
	if err := e.wantVIPs(g, c.flags.Bool("prune"), true); err != nil {
		return err
	}
	if c.flags.Bool("prune") {
		if err := g.sufficient(places, true); err != nil {
			return err
		}
		e.prune(g)
	}
	return c.showDifferences(e.differences(), len(bad) > 0, "etcd and "+strings.Join(places, ", "))
}

// differences lists what the edit would change.
func (e *edit) differences() []serviceDiff {
	all := []serviceDiff{}
	what := map[outcome]string{createdService: "added", updatedService: "changed", removedService: "removed"}
	for _, i := range e.intents {
		if i.What != unchangedService {
			all = append(all, serviceDiff{Service: i.Name, What: what[i.What], Fields: i.Fields})
		}
	}
	slices.SortFunc(all, func(a, b serviceDiff) int { return a.Service.Compare(b.Service) })
	for _, i := range e.vips {
		if i.What != unchangedService {
			all = append(all, serviceDiff{VIP: i.VIP.String(), What: what[i.What], Fields: i.Fields})
		}
	}
	return all
}
