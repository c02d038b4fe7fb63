package owner

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	onhost "vipd/dataplane/failover"
)

// rivalKept is how long a problem is reported after another host has claimed one of this host's
// VIPs. The other host is probed every announce_every.
const rivalKept = 5 * time.Minute

// rivals holds the other hosts that claim this host's VIPs.
type rivals struct {
	// byVRRP reports whether VRRP decides which host owns a VIP. If so, a rival may be the other
	// host of the pair.
	byVRRP bool

	mu    sync.Mutex // guards the fields below
	byVIP map[netip.Addr]*api.OwnerRival
	// over holds the VIPs that are no longer claimed by two hosts, because the last rival or this
	// host has released them.
	over map[netip.Addr]bool
}

// end records that no rival claims these VIPs any longer.
func (r *rivals) end(vips ...netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range vips {
		if r.byVIP[a] != nil {
			r.over[a] = true
		}
	}
}

// left handles an action that may remove VIPs from this host. A VIP that is not on this host can't
// have a rival.
func (r *rivals) left(a local.Action) {
	switch a := a.(type) {
	case local.Unbind:
		r.end(a.Addrs...)
	case local.CloseGate:
		r.end(r.current(rivalKept)...)
	}
}

// current returns the VIPs that a rival has claimed within the duration silent.
func (r *rivals) current(silent time.Duration) (vips []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, one := range r.byVIP {
		if !r.over[a] && time.Since(one.Last) <= silent {
			vips = append(vips, a)
		}
	}
	return vips
}

// rivalsEvery is the interval at which rivals are probed.
const rivalsEvery = 2 * time.Second

// askRivals asks rivals whether they still have the claimed VIPs, until ctx is done.
func (c *core) askRivals(ctx context.Context) {
	for wake.Sleep(ctx, rivalsEvery) {
		vips := c.rivals.current(rivalKept)
		if len(vips) == 0 {
			continue
		}
		found, err := c.worker.kernel.Probe(ctx, vips, 0)
		if err != nil {
			c.o.Log.Debug("asking rivals", "err", err)
			continue
		}
		c.rivals.end(slices.DeleteFunc(vips, func(a netip.Addr) bool { return found[a] != nil })...)
	}
}

// rival handles another host's claim to one of this host's VIPs.
func (c *core) rival(claim onhost.Rival) {
	vip, mac := claim.VIP, claim.MAC.String()
	c.queueInput(func(local.Time) []local.Action {
		at, node := time.Now(), c.decider.Whose(mac)
		c.rivals.mu.Lock()
		r := c.rivals.byVIP[vip]
		news := r == nil || r.MAC != mac || at.Sub(r.Last) > rivalKept || c.rivals.over[vip]
		delete(c.rivals.over, vip)
		if r == nil {
			r = &api.OwnerRival{VIP: vip}
			c.rivals.byVIP[vip] = r
		}
		r.MAC = mac
		r.Node = node
		r.Last = at
		r.Count = r.Count + 1
		text := c.rivals.text(r)
		c.rivals.mu.Unlock()
		if !news || node != "" {
			return nil // another node owns the VIP; this host was stopped and has not processed that yet
		}
		return []local.Action{local.Note{Kind: local.NoteRival, Text: text, VIPs: 1}}
	})
}

// text describes a rival.
func (r *rivals) text(one *api.OwnerRival) string {
	who := "a host outside the fleet"
	if r.byVRRP {
		who = "another host"
	}
	return fmt.Sprintf("%s answers for %s: %s", who, one.VIP, one.MAC)
}

// advice returns the remedy for the problem that a rival causes.
func (r *rivals) advice() string {
	if r.byVRRP {
		return "clients might reach either host; let the hosts receive each other's adverts (IP protocol 112, router_id, peers), or remove the address from one of them"
	}
	return "clients might reach either host; remove the address from the other host"
}

// list returns the rivals, sorted by VIP, and problems for the recent rivals.
func (r *rivals) list() (all []api.OwnerRival, problems []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, vip := range slices.SortedFunc(maps.Keys(r.byVIP), netip.Addr.Compare) {
		one := r.byVIP[vip]
		all = append(all, *one)
		if one.Node == "" && time.Since(one.Last) < rivalKept && !r.over[vip] {
			problems = append(problems, r.text(one)+": "+r.advice())
		}
	}
	return all, problems
}

// probe asks whether other hosts have VIPs.
func (c *core) probe(ctx context.Context, p local.Probe) {
	vips := p.Addrs
	found, err := c.worker.kernel.Probe(ctx, vips, p.Within)
	if err != nil {
		c.failed("can't check whether other hosts have VIPs", err)
		wake.Sleep(ctx, time.Second)
		vips = nil // the VIPs will be probed again
	}
	macs := map[netip.Addr]string{}
	for a, mac := range found {
		macs[a] = mac.String()
	}
	c.queueInput(func(now local.Time) []local.Action { return c.decider.Probed(now, vips, macs) })
}
