package vrrp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// rival is the knowledge of a router that sends adverts while this host is the owner, although it
// should have yielded.
type rival struct {
	// tenure is the first advert of this host's tenure.
	tenure      uint64
	since, last local.Time
	adverts     int
	noted       bool
}

// heardRival processes an advert that should be its router's last. If the owner that this host
// preempted continues, it does not accept this host's adverts, so only this host can end the double
// ownership. A router that appears later, or after silence, must yield itself. A router that hangs
// sends none, so this host keeps the VIPs that it took from it.
func (r *router) heardRival(p *peer) {
	t, v := &r.tenure, &p.rival
	if v.tenure != t.first || r.now.Since(v.last) > r.g.k()*p.interval(r.g.Interval) {
		*v = rival{tenure: t.first, since: r.now}
	}
	v.last = r.now
	v.adverts++
	if r.state == Claiming && !slices.Contains(t.preempted, p.addr) {
		t.preempted = append(t.preempted, p.addr) // it has claimed at the same time
	}
	if r.state == Active && !v.noted { // a Claiming router was not heard yet
		v.noted = true
		if r.peers.notes.allow(r.now) {
			text := fmt.Sprintf("%s is Active in %s at the same time as this host", p.addr, r.g.Name)
			r.do(local.Note{Kind: local.NoteRival, Text: text, VIPs: len(r.bound)})
		}
	}
	goesOn := v.adverts > 1 && v.since.Since(t.began) <= r.g.k()*p.interval(r.g.Interval) && r.now.Since(t.began) >= (r.g.k()+1)*r.g.Interval
	if goesOn && slices.Contains(t.preempted, p.addr) && !p.distant() {
		r.yield(p, p.addr.String()+" is Active and ignores the adverts of this host")
	}
}

// rival is a router that is an owner at the same time as this host, and does not yield; nil means
// none.
func (r *router) rival(now local.Time) *peer {
	for _, p := range r.peers.sorted() {
		v := &p.rival
		if r.state == Active && v.tenure == r.tenure.first && v.adverts > 1 && now.Since(v.last) <= 2*r.g.k()*p.interval(r.g.Interval) {
			return p
		}
	}
	return nil
}

// ignores describes a rival.
func (r *router) ignores(p *peer) string {
	text := fmt.Sprintf("%s is Active, but %s is Active as well and ignores the adverts of this host", r.g.Name, p.addr)
	if d := p.differs(&r.g); d != "" {
		text += ": " + d
	}
	return text
}

// probeTimes are the times after a takeover from a router that was an owner. An owner restarts its
// advert timer at each packet that it receives, so a router may own the VIPs without sending an
// advert.
var probeTimes = [...]time.Duration{100 * time.Millisecond, time.Second}

// probe asks whether the last owner still answers for the VIPs.
func (r *router) probe() {
	t := &r.tenure
	if len(t.preempted) > 0 && !r.g.Unyielding && t.probes < len(probeTimes) && r.now.Since(t.active) >= probeTimes[t.probes] {
		t.probes++
		r.do(local.Probe{Addrs: r.bound})
	}
}

// probed processes the answers to Probes.
func (r *router) probed(found map[netip.Addr]string) {
	if r.state != Active || r.tenure.probes == 0 {
		return
	}
	for _, a := range r.bound {
		if mac := found[a]; mac != "" {
			r.yield(r.peers.of[r.tenure.preempted[0]], fmt.Sprintf("%s still has %s, which was to give it away", mac, a))
			return
		}
	}
}

// yield leaves the VIPs to a router that ignores this host's adverts, until it is silent.
func (r *router) yield(p *peer, text string) {
	if r.g.Unyielding {
		return
	}
	interval := r.g.Interval
	if p != nil {
		interval = p.interval(interval)
		if d := p.differs(&r.g); d != "" {
			text += ": " + d
		}
	}
	r.peers.yielded = text
	r.stepDown(local.NoteRival, "gave up "+r.g.label()+": "+text, cause{"yield", text}, interval)
}
