package vrrp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// rival is a router that acts as an owner during this host's tenure. Normally the router with the
// lower priority receives the other's adverts and releases the VIPs. If neither router does so, the
// other router does not accept this host's adverts, so this host must yield:
//
//   - A router that this host preempted was the owner first. This host yields if the router
//     continues to send adverts, or answers for a VIP.
//   - To any other router, this host yields only if the router answers for a VIP, because adverts
//     alone are easily forged. The limit is longer, so a rival that runs vipd and preempted this
//     host yields first.
//
// A router that hangs answers for its VIPs but sends no adverts, so this host keeps the VIPs that
// it took over from such a router.
type rival struct {
	*peer
	// preempted reports whether the rival was an owner when this host claimed the VIPs.
	preempted bool
	// since and last are when its first and last adverts in this tenure arrived, and adverts is how
	// many arrived. All three are reset after a silence.
	since, last local.Time
	adverts     int
	noted       bool
}

// limit returns how long a rival may persist before this host yields to it, or probes whether it
// has the VIPs.
func (v *rival) limit(g *Group) time.Duration {
	d := (g.k() + 1) * max(g.Interval, v.interval(g.Interval))
	if !v.preempted {
		d += g.Interval / 4
	}
	return d
}

// rivals holds the rivals of this host during one tenure.
type rivals struct {
	all []*rival
	// probes counts the Probes after a preempting claim, and asked is when the last Probe was sent.
	probes int
	asked  local.Time
}

// find returns the entry for a router, and adds it if missing. It returns nil if there are too many
// entries.
func (x *rivals) find(p *peer) *rival {
	i := slices.IndexFunc(x.all, func(v *rival) bool { return v.addr == p.addr })
	if i < 0 {
		if len(x.all) >= maxPeers {
			return nil
		}
		i, x.all = len(x.all), append(x.all, &rival{})
	}
	x.all[i].peer = p
	return x.all[i]
}

// preempted returns a router that was an owner when this host claimed the VIPs, or nil.
func (x *rivals) preempted() *rival {
	if i := slices.IndexFunc(x.all, func(v *rival) bool { return v.preempted }); i >= 0 {
		return x.all[i]
	}
	return nil
}

// heardRival processes an advert from a router that should stop sending adverts.
func (r *router) heardRival(p *peer) {
	t, v := &r.tenure, r.tenure.rivals.find(p)
	if v == nil {
		return
	}
	if r.now.Since(max(v.last, t.began)) > r.g.k()*p.interval(r.g.Interval) {
		*v = rival{peer: p}
	}
	if v.last = r.now; v.adverts == 0 {
		v.since = r.now
	}
	v.adverts++
	if r.state == Claiming && p.addr.Compare(r.g.Link.Source) > 0 {
		v.preempted = true // both routers claimed at the same time
	}
	if r.state == Active && !v.noted { // a Claiming router is not an owner yet
		v.noted = true
		if r.peers.notes.allow(r.now) {
			text := fmt.Sprintf("%s is Active in %s at the same time as this host", p.addr, r.g.Name)
			r.do(local.Note{Kind: local.NoteRival, Text: text, VIPs: len(r.bound)})
		}
	}
}

// present returns a router that was an owner recently and does not yield, or nil.
func (x *rivals) present(now local.Time, g *Group) *peer {
	for _, v := range x.all {
		if v.adverts > 1 && now.Since(v.last) <= 2*g.k()*v.interval(g.Interval) {
			return v.peer
		}
	}
	return nil
}

// ignores describes a rival that ignores this host's adverts, for operators.
func (p *peer) ignores(g *Group) string {
	text := fmt.Sprintf("%s is Active, but %s is also Active and ignores this host's adverts", g.Name, p.addr)
	if d := p.differs(g); d != "" {
		text += ": " + d
	}
	return text
}

// probeTimes holds when this host sends Probes, measured from a takeover from a router that was an
// owner. An owner restarts its advert timer at each packet that it receives, so a router may own
// the VIPs without sending an advert.
var probeTimes = [...]time.Duration{100 * time.Millisecond, time.Second}

// contest yields to a rival that continues to send adverts, or probes whether a rival answers for
// the VIPs.
func (r *router) contest() {
	if r.g.Unyielding {
		return
	}
	t := &r.tenure
	x := &t.rivals
	asks := x.preempted() != nil && x.probes < len(probeTimes) && r.now.Since(t.active) >= probeTimes[x.probes]
	if asks {
		x.probes++
	}
	for _, v := range x.all {
		limit := v.limit(&r.g)
		switch {
		case v.distant():
		case !v.preempted:
			asks = asks || x.asksAbout(v, r.now, limit)
		case v.adverts > 1 && r.now.Since(t.began) >= limit && 2*r.now.Since(v.last) <= 3*v.interval(r.g.Interval):
			r.yield(v.peer, v.addr.String()+" is Active and ignores this host's adverts")
			return
		}
	}
	if asks {
		x.asked = r.now
		r.do(local.Probe{Addrs: r.bound, Within: min(maxProbe, r.g.Interval/3)})
	}
}

// maxProbe is how long a Probe waits for answers at most.
const maxProbe = 300 * time.Millisecond

// asksAbout reports whether a Probe must determine if a rival has the VIPs. This is necessary if
// the rival's time limit has passed and it has sent adverts since the last Probe.
func (x *rivals) asksAbout(v *rival, now local.Time, limit time.Duration) bool {
	again := v.last > x.asked && now.Since(x.asked) >= limit
	return v.adverts > 0 && now.Since(v.since) >= limit && (x.asked < v.since.Add(limit) || again)
}

// probed processes the answers to Probes.
func (r *router) probed(found map[netip.Addr]string) {
	x := &r.tenure.rivals
	if r.state != Active || x.asked == 0 {
		return
	}
	for _, a := range r.bound {
		if mac := found[a]; mac != "" {
			r.yield(x.latest(), fmt.Sprintf("%s still has %s, although it agreed to give up the VIP", mac, a))
			return
		}
	}
}

// latest returns the router that this host preempted, or the rival that sent the last advert.
func (x *rivals) latest() *peer {
	if v := x.preempted(); v != nil {
		return v.peer
	}
	return slices.MaxFunc(x.all, func(a, b *rival) int { return cmp.Compare(a.last, b.last) }).peer
}

// yielded records which router this host has left the VIPs to, because the router ignores its
// adverts.
type yielded struct {
	to *peer
	// text is the reason why this host yielded, or "". differs describes how the router's
	// configuration differs from this host's.
	text, differs string
}

// yield leaves the VIPs to a router that ignores this host's adverts, until that router is silent.
func (r *router) yield(p *peer, text string) {
	y := yielded{to: p, text: text, differs: p.differs(&r.g)}
	if y.differs != "" {
		y.text += ": " + y.differs
	}
	r.peers.yielded = y
	r.stepDown(local.NoteRival, "gave up "+r.g.label()+": "+y.text, cause{"yield", y.text}, p.interval(r.g.Interval))
}

// reconcile ends a yield if the router's configuration no longer differs.
func (p *peers) reconcile(from *peer, g *Group) {
	if y := &p.yielded; y.to == from && y.differs != "" && from.differs(g) == "" {
		*y = yielded{}
	}
}
