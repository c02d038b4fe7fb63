package balancer

import (
	"net/netip"
	"time"

	"vipd/balancer/snap"
)

// Memory is what has to be remembered from one compiled state to the next: removed endpoints whose connections may live
// on, weights that are still ramping up, VIPs that are withdrawn, and who holds which key. It is a fold over compiled states, feeds the next Compile through Inputs, and is kept on
// disk so that a restart loses none of it.
type Memory struct {
	// Drains holds the removed endpoints, until their time is over.
	Drains snap.Map[DrainKey, Drain]
	// Ramps holds the backends that joined or recovered, until they have their whole weight.
	Ramps snap.Map[DrainKey, Ramp]
	// Leaving holds the VIPs that have lost their last frontend while connections may have been open on it, until their
	// time is over: without its address a host could not carry them to their end.
	Leaving snap.Map[netip.Addr, Drain]
	// Holders says which service has each key.
	Holders snap.Map[Key, Name]
	// Away holds the VIPs that are withdrawn, or were a moment ago.
	Away snap.Map[netip.Addr, Away]
}

// Remembering returns in with what m remembers in place of what it had.
func (in Inputs) Remembering(m Memory) Inputs {
	in.Drains, in.Ramps, in.Leaving, in.Holders, in.Away = m.Drains, m.Ramps, m.Leaving, m.Holders, m.Away
	return in
}

// After returns the memory after the compiled state went from before to after at the time now. Its cost grows with the
// difference and the number of drains.
//
// An endpoint that left a frontend begins a drain of the frontend's DrainTimeout, one that is back ends it. UDP has no
// connections to drain: its flows move at once. When a whole frontend goes, what is left of its connections is up to
// the dataplane, which has the frontend's DrainTimeout; its VIP stays as long.
func (m Memory) After(before, after Desired, now time.Time) Memory {
	for key, change := range snap.Diff(before.Frontends, after.Frontends) {
		if !change.HasNew {
			m.Holders = m.Holders.Delete(key)
			m = m.forget(key).leave(change.Old, after, now)
			continue
		}
		if !change.New.NodePort { // an own address that was a VIP is one until its time is over
			m.Leaving = m.Leaving.Delete(key.Addr)
		}
		m = m.ramp(change.Old, change.New, now)
		m.Holders = m.Holders.Set(key, change.New.Service)
		if change.HadOld && key.Proto != UDP {
			m = m.drainLeft(change.Old, change.New, now)
		}
		for _, b := range change.New.Backends {
			if b.State != Removed {
				m.Drains = m.Drains.Delete(DrainKey{key, b.Addr})
			}
		}
	}
	return m.withdraw(before, after, now).Expire(now)
}

// drainLeft begins the drain of each backend that is in old and not in next.
func (m Memory) drainLeft(old, next *Frontend, now time.Time) Memory {
	if next.DrainTimeout <= 0 {
		return m
	}
	for _, b := range old.Backends {
		if b.State == Removed || next.Backend(b.Addr) != nil {
			continue
		}
		// A drain that was told to end earlier keeps its end.
		until := now.Add(next.DrainTimeout).UTC().Round(0)
		if !b.Until.IsZero() && b.Until.Before(until) {
			until = b.Until
		}
		m.Drains = m.Drains.Set(DrainKey{next.Key, b.Addr}, Drain{until})
	}
	return m
}

// leave keeps the VIP of a frontend that goes, if no other is left on it.
func (m Memory) leave(f *Frontend, after Desired, now time.Time) Memory {
	if f.NodePort || f.Proto == UDP || f.DrainTimeout <= 0 || after.Addresses.At(f.Addr) > 0 {
		return m
	}
	until := now.Add(f.DrainTimeout).UTC().Round(0)
	if d, ok := m.Leaving.Get(f.Addr); !ok || d.Until.Before(until) {
		m.Leaving = m.Leaving.Set(f.Addr, Drain{until})
	}
	return m
}

// forget drops the drains and ramps of one frontend.
func (m Memory) forget(key Key) Memory {
	m.Ramps = dropRamps(m.Ramps, key)
	for k := range ofFrontend(m.Drains, key) {
		m.Drains = m.Drains.Delete(k)
	}
	return m
}

// Expire drops the drains of endpoints and VIPs whose time is over at now, and brings the ramps to where they are by then.
func (m Memory) Expire(now time.Time) Memory {
	m = m.climb(now)
	for k, d := range m.Drains.All() {
		if !d.Until.After(now) {
			m.Drains = m.Drains.Delete(k)
		}
	}
	for a, d := range m.Leaving.All() {
		if !d.Until.After(now) {
			m.Leaving = m.Leaving.Delete(a)
		}
	}
	return m.expireAway(now)
}

// Shift returns m after the clock was set forward by so much, or back: what goes on takes no longer and no shorter for that.
func (m Memory) Shift(by time.Duration) Memory {
	if by == 0 {
		return m
	}
	for k, d := range m.Drains.All() {
		m.Drains = m.Drains.Set(k, Drain{d.Until.Add(by)})
	}
	for a, d := range m.Leaving.All() {
		m.Leaving = m.Leaving.Set(a, Drain{d.Until.Add(by)})
	}
	for k, r := range m.Ramps.All() {
		r.Since = r.Since.Add(by)
		m.Ramps = m.Ramps.Set(k, r)
	}
	for a, d := range m.Away.All() {
		if !d.Until.IsZero() {
			d.Until = d.Until.Add(by)
			m.Away = m.Away.Set(a, d)
		}
	}
	return m
}

// NextExpiry returns when the next drain ends, of an endpoint or a VIP, or the next step of a ramp is due; zero means none is
// under way.
func (m Memory) NextExpiry() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, d := range m.Drains.All() {
		earlier(d.Until)
	}
	for _, d := range m.Leaving.All() {
		earlier(d.Until)
	}
	for _, r := range m.Ramps.All() {
		earlier(r.next())
	}
	for _, d := range m.Away.All() {
		if !d.Until.IsZero() {
			earlier(d.Until)
		}
	}
	return next
}
