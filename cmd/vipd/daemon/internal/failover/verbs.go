package failover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/failover"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
)

// errNotByVRRP is the error for requests that are only possible with VRRP.
var errNotByVRRP = errors.New("VRRP does not choose the owners of VIPs on this host: add [ownership.vrrp.NAME] to its configuration")

// byVRRP returns an error unless VRRP chooses the owners of this host's VIPs.
func (r *Reporter) byVRRP() error {
	if r == nil || r.o.Standby == nil {
		return errNotByVRRP
	}
	return nil
}

// Move passes a VIP's group to another host.
func (r *Reporter) Move(ctx context.Context, vip netip.Addr, q api.MoveRequest) error {
	if err := r.byVRRP(); err != nil {
		return err
	}
	c := api.NewOwnerClient(r.o.Socket)
	defer c.Close()
	err := c.Move(ctx, vip)
	if err == nil {
		r.o.Events.Record(events.Event{Kind: events.Override, Text: fmt.Sprintf("this host gives %s to another host", vip), Cause: by(q.By, q.Reason)})
	}
	return err
}

// SetStandby puts this host on standby, or ends the standby.
func (r *Reporter) SetStandby(ctx context.Context, q api.StandbyRequest) error {
	if err := r.byVRRP(); err != nil {
		return err
	}
	before := r.memory.standby()
	switch {
	case q.On && before != nil:
		return nil
	case !q.On && before == nil: // after a move, this host may preempt again
		c := api.NewOwnerClient(r.o.Socket)
		defer c.Close()
		return c.Resume(ctx)
	}
	var next *api.Standby
	e := events.Event{Kind: events.Override, Text: "may own VIPs again", Was: "standby", Cause: by(q.By, q.Reason)}
	if before != nil {
		e.Lasted = time.Since(before.Since)
	}
	if q.On {
		next = &api.Standby{By: q.By, Reason: q.Reason, Since: time.Now().UTC().Truncate(time.Second)}
		e.Text, e.Was = "is on standby: it owns no VIP", ""
	}
	if err := r.memory.setStandby(next); err != nil {
		return err
	}
	e.Text = "this host " + e.Text
	r.o.Events.Record(e)
	r.o.Standby(q.On)
	return nil
}

func by(name, reason string) string {
	text := "by " + cmp.Or(name, "an operator")
	return text + failover.Request{Reason: reason}.String()
}

// Ownership returns the VIPs with one owner, and the state of their groups, which it requests from
// vipd owner.
func (r *Reporter) Ownership(ctx context.Context, v Serving) api.Ownership {
	o := api.Ownership{Node: v.State.Config.Node, Groups: []api.OwnerGroup{}, VIPs: []api.GroupVIP{}}
	if err := r.byVRRP(); err != nil {
		o.Unknown = err.Error()
		return o
	}
	o.Standby = r.memory.standby()
	report := r.report(&v)
	c := v.State.Config
	o.VIPs = groupVIPs(v.State, &report, &c)
	client := api.NewOwnerClient(r.o.Socket)
	defer client.Close()
	s, err := client.Status(ctx)
	if err != nil {
		o.Unknown = fmt.Sprintf("vipd owner does not answer (%s): systemctl start vipd-owner", err)
		return o
	}
	if s.VRRP != nil {
		r.memory.note(s.VRRP, time.Now())
		for _, g := range s.VRRP.Groups {
			o.Groups = append(o.Groups, api.OwnerGroup{GroupStatus: g, Changes: r.memory.changes(g.Name)})
		}
	}
	return o
}

func groupVIPs(s *model.State, report *api.OwnerReport, c *config.Config) []api.GroupVIP {
	group := map[netip.Addr]string{}
	groups, _ := c.VRRPGroupsOf(report.Groups())
	for _, g := range groups {
		for _, a := range g.VIPs {
			group[a] = g.Name
		}
	}
	all := []api.GroupVIP{}
	for _, a := range slices.SortedFunc(maps.Keys(report.VIPs), netip.Addr.Compare) {
		v := api.GroupVIP{VIP: a, Group: group[a], Require: s.Inputs.PolicyOf(a).Require, Cannot: report.VIPs[a].Cannot, Services: []string{}}
		names := map[balancer.Name]bool{}
		for _, f := range balancer.FrontendsOn(s.Desired.Frontends, a) {
			names[f.Service] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			v.Services = append(v.Services, string(name))
		}
		all = append(all, v)
	}
	return all
}
