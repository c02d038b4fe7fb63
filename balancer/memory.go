package balancer

import (
	"net/netip"
	"time"

	"vipd/balancer/snap"
)

// Memory is the state that one compilation passes to the next: draining endpoints, ramping weights,
// withdrawn VIPs, and the holder of each key. It follows from the compiled state and is an input of
// the next compilation. vipd stores it on disk, so a restart loses nothing.
type Memory struct {
	// Drains holds the removed backends, until their deadline.
	Drains snap.Map[BackendKey, Drain]
	// Ramps holds the backends that joined or recovered, until they have their full weight.
	Ramps snap.Map[BackendKey, Ramp]
	// DrainingVIPs holds the VIPs that have lost their last frontend, until their deadline. Open
	// connections still need the address.
	DrainingVIPs snap.Map[netip.Addr, Drain]
	// Holders maps each key to the service that holds it.
	Holders snap.Map[Key, Name]
	// Withdrawals holds the VIPs that are or recently were withdrawn.
	Withdrawals snap.Map[netip.Addr, Withdrawal]
}

// WithMemory returns in with its memory replaced by m.
func (in Inputs) WithMemory(m Memory) Inputs {
	in.Drains = m.Drains
	in.Ramps = m.Ramps
	in.DrainingVIPs = m.DrainingVIPs
	in.Holders = m.Holders
	in.Withdrawals = m.Withdrawals
	return in
}

// After returns the memory that results when the compiled state changes from before to after at the
// time now. Its cost grows with the number of differences and drains.
//
// When an endpoint is removed from a frontend, it drains for DrainTimeout, or until it is added
// again. UDP has no connections to drain, so its flows move immediately. When a whole frontend is
// removed, the dataplane drains its connections for the frontend's DrainTimeout, and the VIP
// remains until then.
func (m Memory) After(before, after Desired, now time.Time) Memory {
	for key, change := range snap.Diff(before.Frontends, after.Frontends) {
		if !change.HasNew {
			m.Holders = m.Holders.Delete(key)
			m = m.dropFrontend(key).keepVIP(change.Old, after, now)
			continue
		}
		if !change.New.NodePort { // a node's own address that was a VIP remains a VIP until its deadline
			m.DrainingVIPs = m.DrainingVIPs.Delete(key.Addr)
		}
		m = m.startRamps(change.Old, change.New, now)
		m.Holders = m.Holders.Set(key, change.New.Service)
		if change.HadOld && key.Proto != UDP {
			m = m.startDrains(change.Old, change.New, now)
		}
		for _, b := range change.New.Backends {
			if b.State != Removed {
				m.Drains = m.Drains.Delete(BackendKey{key, b.Addr})
			}
		}
	}
	return m.recordWithdrawals(before, after, now).Expire(now)
}

// startDrains starts a drain for each backend of old that is missing from next.
func (m Memory) startDrains(old, next *Frontend, now time.Time) Memory {
	if next.DrainTimeout <= 0 {
		return m
	}
	for _, b := range old.Backends {
		if b.State == Removed || next.Backend(b.Addr) != nil {
			continue
		}
		// A backend that was already draining keeps its deadline if that is earlier.
		until := now.Add(next.DrainTimeout).UTC().Round(0)
		if !b.Until.IsZero() && b.Until.Before(until) {
			until = b.Until
		}
		m.Drains = m.Drains.Set(BackendKey{next.Key, b.Addr}, Drain{until})
	}
	return m
}

// keepVIP keeps a removed frontend's VIP for the drain timeout, unless the VIP has another
// frontend.
func (m Memory) keepVIP(f *Frontend, after Desired, now time.Time) Memory {
	if f.NodePort || f.Proto == UDP || f.DrainTimeout <= 0 || after.Addresses.At(f.Addr) > 0 {
		return m
	}
	until := now.Add(f.DrainTimeout).UTC().Round(0)
	if d, ok := m.DrainingVIPs.Get(f.Addr); !ok || d.Until.Before(until) {
		m.DrainingVIPs = m.DrainingVIPs.Set(f.Addr, Drain{until})
	}
	return m
}

func (m Memory) dropFrontend(key Key) Memory {
	m.Ramps = dropRamps(m.Ramps, key)
	for k := range onFrontend(m.Drains, key) {
		m.Drains = m.Drains.Delete(k)
	}
	return m
}

// Expire deletes the drains and withdrawals whose deadline has passed, and advances the ramps.
func (m Memory) Expire(now time.Time) Memory {
	m = m.advanceRamps(now)
	for k, d := range m.Drains.All() {
		if !d.Until.After(now) {
			m.Drains = m.Drains.Delete(k)
		}
	}
	for a, d := range m.DrainingVIPs.All() {
		if !d.Until.After(now) {
			m.DrainingVIPs = m.DrainingVIPs.Delete(a)
		}
	}
	return m.expireWithdrawals(now)
}

// AdjustClock returns m adjusted to a system clock that was set forward by delta (back if
// negative). The time that remains until each deadline does not change.
func (m Memory) AdjustClock(delta time.Duration) Memory {
	if delta == 0 {
		return m
	}
	for k, d := range m.Drains.All() {
		m.Drains = m.Drains.Set(k, Drain{d.Until.Add(delta)})
	}
	for a, d := range m.DrainingVIPs.All() {
		m.DrainingVIPs = m.DrainingVIPs.Set(a, Drain{d.Until.Add(delta)})
	}
	for k, r := range m.Ramps.All() {
		r.Since = r.Since.Add(delta)
		m.Ramps = m.Ramps.Set(k, r)
	}
	for a, d := range m.Withdrawals.All() {
		if !d.Until.IsZero() {
			d.Until = d.Until.Add(delta)
			m.Withdrawals = m.Withdrawals.Set(a, d)
		}
	}
	return m
}

// NextExpiry returns when the next drain or withdrawal ends, or the next ramp advances. Zero means
// never.
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
	for _, d := range m.DrainingVIPs.All() {
		earlier(d.Until)
	}
	for _, r := range m.Ramps.All() {
		earlier(r.next())
	}
	for _, d := range m.Withdrawals.All() {
		if !d.Until.IsZero() {
			earlier(d.Until)
		}
	}
	return next
}
