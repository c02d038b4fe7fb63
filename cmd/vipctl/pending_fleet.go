package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/wording"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
)

// checkTrial checks the flags for a pending change.
func checkTrial(c *cli.Call) error {
	switch {
	case !c.Flags.IsSet("confirm") && c.Flags.String("on") != "":
		return cli.WrongUse("--on needs --confirm; for example: vipctl apply -f FILE --confirm 10m --on %s", c.Flags.String("on"))
	case !c.Flags.IsSet("confirm"):
		return nil
	case c.Flags.Duration("confirm") <= 0:
		return cli.WrongUse("--confirm needs a time above 0, such as 10m")
	case c.Flags.Bool("prune"):
		return cli.WrongUse("removals can't be pending: leave out --prune, and remove the services after \"vipctl confirm\"")
	}
	return nil
}

// pendingResult is a pending change in JSON.
type pendingResult struct {
	Revision int64           `json:"revision"`
	Until    time.Time       `json:"until"`
	On       []string        `json:"on,omitempty"`
	Services []balancer.Name `json:"services"`
}

// try writes the changes to etcd as a pending change.
func (e *edit) try(g *given) error {
	if err := e.refuse(); err != nil {
		return err
	}
	if len(g.vips) > 0 {
		return errors.New("address settings can't be pending: apply them from a separate file, without --confirm")
	}
	now := e.Now().UTC()
	p := &schema.Pending{By: author(e.Call), Since: now, Until: now.Add(e.Flags.Duration("confirm")), Services: map[balancer.Name]*schema.PendingService{}}
	if on := e.Flags.String("on"); on != "" {
		var err error
		if p.On, err = schema.ParseScope(on); err != nil {
			return cli.WrongUse("--on: %v", err)
		}
		if err := e.coversNode(p); err != nil {
			return err
		}
	}
	for _, s := range e.plan.Steps {
		switch {
		case s.Outcome == definitions.Unchanged:
			continue
		case len(s.Service.Allocated) < len(s.Service.Pools):
			return fmt.Errorf("service %s needs a new address from a pool, which --confirm can't assign: write the address, or apply the service without --confirm", s.Name)
		}
		p.Services[s.Name] = &schema.PendingService{Fields: s.Fields, Base: s.Base}
	}
	names := slices.Sorted(maps.Keys(p.Services))
	if len(names) == 0 {
		return errors.New("there is nothing to confirm: the services in etcd are already the same")
	}
	revision, err := e.Writer.Try(e, p)
	if err != nil {
		return err
	}
	return e.Show(pendingResult{revision, p.Until, p.On, names}, func() string {
		where := "on all hosts"
		if len(p.On) > 0 {
			where = "on " + wording.List(p.On, "and")
		}
		return fmt.Sprintf("%s pending %s: %s; will be reverted %s unless \"vipctl confirm\" keeps it\n",
			wording.Count(len(names), "service"), where, nameList(names), ahead(e.Printer, p.Until))
	})
}

// coversNode returns an error if p does not apply to any running node.
func (e *edit) coversNode(p *schema.Pending) error {
	all, err := e.Writer.Statuses(e)
	if err != nil {
		return fmt.Errorf("reading the nodes for --on: %w", err)
	}
	var running []string
	for _, n := range all {
		if n.Live == nil {
			continue
		}
		name, zone := n.Name, ""
		switch {
		case n.Status != nil:
			zone = n.Status.Zone
		case n.Config != nil:
			zone = n.Config.Zone
		}
		if p.Covers(name, zone) {
			return nil
		}
		if zone != "" {
			name += " (zone=" + zone + ")"
		}
		running = append(running, name)
	}
	if running == nil {
		return errors.New("--on selects no node, because no vipd uses this etcd now")
	}
	return fmt.Errorf("--on %s selects no node; the nodes are %s", strings.Join(p.On, ","), wording.Some(running, 8))
}

func confirmFleet(c *cli.Call) error {
	w, err := c.Etcd()
	if err != nil {
		return err
	}
	p, revision, err := w.Pending(c, c.Now())
	if err != nil {
		return err
	}
	if len(p.Unread) > 0 {
		return fmt.Errorf("nothing was written, because this vipctl can't read part of the pending change: %s; confirm with the version of vipctl that started it", p.Unread[0])
	}
	var changes []definitions.Change
	for name, s := range p.Services {
		changes = append(changes, definitions.Change{Name: name, Fields: s.Fields})
	}
	e := newEdit(c, changes, nil)
	e.plan.AllowUnknown = true
	if err := e.read(); err != nil {
		return err
	}
	for _, s := range e.plan.Steps {
		if base := p.Services[s.Name].Base; s.Outcome != definitions.Unchanged && s.Base != base {
			return fmt.Errorf("service %s was changed (now at revision %d) since the pending change started (revision %d), so nothing was written: \"vipctl abort\" reverts the pending change",
				s.Name, s.Base, base)
		}
	}
	if err := e.judge(); err != nil {
		return err
	}
	if err := e.refuse(); err != nil {
		return err
	}
	if err := e.write(); err != nil {
		return cmp.Or(e.report(false), err)
	}
	if err := w.EndPending(c, p, revision, author(c), true); err != nil {
		return err
	}
	return e.report(false)
}

func abortFleet(c *cli.Call) error {
	w, err := c.Etcd()
	if err != nil {
		return err
	}
	p, revision, err := w.Pending(c, c.Now())
	if err == nil {
		err = w.EndPending(c, p, revision, author(c), false)
	}
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(p.Services))
	return c.Show(pendingResult{Until: p.Since, On: p.On, Services: names}, func() string { return "aborted: the hosts revert " + nameList(names) + "\n" })
}
