package vrrp

import "time"

// The times of a group are derived from its interval A and the number k of its down adverts. A
// backup takes over kA and its skew after the last advert that it received. The owner's gate must
// be closed at that time:
//
//	sent s                stops t <= s+A     closed t+T         s+D             backup takes
//	|---- A ---------------|------ T --------|------------------|---------------| s + kA + skew
//
// T is at most A/2, so the gate of a stopped owner is closed 1.5 A after its last advert, even if a
// backup missed that advert. D is (k - 1/2) A: without a newer advert the gate is not refreshed
// after s+D-T, even if all other parts of the process work.

// MaxGate is the maximum GateTime.
const MaxGate = 250 * time.Millisecond

// GateTime returns T, which is how long the gate stays open after a refresh. All groups share the
// gate, so it depends on the smallest interval.
func GateTime(groups []Group) time.Duration {
	t := MaxGate
	for i := range groups {
		t = min(t, groups[i].Interval/2)
	}
	return t
}

// downAdverts is k, the default number of adverts that a backup misses until it takes over.
const downAdverts = 3

// k returns the number of missed adverts after which a backup takes over.
func (g *Group) k() time.Duration {
	if g.DownAdverts == 0 {
		return downAdverts
	}
	return time.Duration(g.DownAdverts)
}

// OwnerTime returns D, which is how long the gate may be open after an advert.
func (g *Group) OwnerTime() time.Duration { return (2*g.k() - 1) * g.Interval / 2 }

// Skew returns how long after kA a backup with the given priority takes over. The delay is shorter
// for higher priorities. The parameter interval is the owner's advert interval.
func (g *Group) Skew(priority uint8, interval time.Duration) time.Duration {
	if g.Version == 2 {
		interval = time.Second
	}
	return (256 - time.Duration(priority)) * interval / 256
}

// DownTime returns the time from an owner's last advert to the takeover by a backup with the given
// priority. The parameter interval is the owner's advert interval.
func (g *Group) DownTime(priority uint8, interval time.Duration) time.Duration {
	return g.k()*interval + g.Skew(priority, interval)
}

// settle is the time between a new owner's first advert and the binding of the VIPs. In this time a
// lower owner removes them.
const settle = 20 * time.Millisecond
