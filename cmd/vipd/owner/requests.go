package owner

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
)

// request returns the handler for a request that requires VRRP. The loop calls the function do.
func (o *Owner) request(do func(d *byVRRP, now local.Time, r *http.Request) ([]local.Action, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := o.doRequest(func(d *byVRRP, now local.Time) ([]local.Action, error) { return do(d, now, r) }); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		o.answer(w, false)
	}
}

func (o *Owner) doRequest(do func(d *byVRRP, now local.Time) ([]local.Action, error)) error {
	c := o.core.Load()
	if c == nil {
		return errors.New("this host has no VIPs yet: vipd has reported none to vipd owner")
	}
	d, is := c.decider.(*byVRRP)
	if !is {
		return errors.New("etcd decides which host owns this host's VIPs: use \"vipctl vip move\" with --etcd")
	}
	done := make(chan error, 1)
	c.queueInput(func(now local.Time) []local.Action {
		actions, err := do(d, now)
		done <- err
		return actions
	})
	select {
	case err := <-done:
		return err
	case <-c.ended:
		return errors.New("vipd owner is stopping")
	}
}

// move passes a VIP's group to another host.
func (d *byVRRP) move(now local.Time, r *http.Request) ([]local.Action, error) {
	vip, err := netip.ParseAddr(r.PathValue("vip"))
	if err != nil {
		return nil, err
	}
	group, err := d.owned(now, vip)
	if err != nil {
		return nil, err
	}
	return d.Resign(now, group), nil
}

// resume permits this host to preempt other hosts again in groups that were moved away.
func (d *byVRRP) resume(now local.Time, _ *http.Request) ([]local.Action, error) {
	return d.Standby(now, d.standby), nil
}

// owned returns a VIP's group, or an error that says why this host does not own the VIP.
func (d *byVRRP) owned(now local.Time, vip netip.Addr) (group string, err error) {
	for _, g := range d.reported.last {
		if slices.Contains(g.VIPs, vip) {
			group = g.Name
		}
	}
	for _, g := range d.Status(now).Groups {
		switch {
		case g.Name != group:
		case g.State == vrrp.Active:
			return group, nil
		case g.Owner.IsValid():
			return "", fmt.Errorf("%s owns %s: run the command there", g.Owner, vip)
		default:
			return "", fmt.Errorf("this host does not own %s, and the owner is unknown: this host is %s in %s", vip, g.State, g.Name)
		}
	}
	return "", fmt.Errorf("%s is not in any VRRP group on this host", vip)
}

// setStandby sets whether an operator wants this host to own no VIPs.
func (d *byVRRP) setStandby(now local.Time, on bool) []local.Action {
	if d.standby == on {
		return nil
	}
	d.standby = on
	return d.Standby(now, on)
}
