package balancer

import (
	"net/netip"
	"time"

	"vipd/balancer/snap"
)

// Standing is how a VIP that has settings stands on a host. One without is held as soon as may be.
type Standing string

// The standings.
const (
	// Serving: the host holds it once a frontend on it that has an endpoint is applied. Routers lead clients to the host as
	// soon as the address is there.
	Serving Standing = "serving"
	// Withdrawn: the host does not hold it, for no endpoint of the services on it is usable, or the host is on standby.
	Withdrawn Standing = "withdrawn"
	// Owned: the host does not hold it by itself. One owner among the hosts brings it to a real device (HoldOne).
	Owned Standing = "owned"
)

// Pool is what a pool says of the addresses that it gives.
type Pool struct {
	Name Name `toml:"-"`
	// Origin is where it was read.
	Origin Origin         `toml:"-"`
	CIDRs  []netip.Prefix `toml:"cidrs"`
	VIPPolicy
}

// PolicyOf returns the settings of an address: its own, over those of the pool with the smallest network that has it, over
// the program's defaults.
func (in *Inputs) PolicyOf(a netip.Addr) VIPPolicy {
	policy, bits := DefaultVIPPolicy(), -1
	for _, p := range in.Pools.All() {
		for _, c := range p.CIDRs {
			if c.Contains(a) && c.Bits() > bits {
				policy, bits = p.VIPPolicy, c.Bits()
			}
		}
	}
	if v := in.VIPs.At(a); v != nil {
		return v.over(policy)
	}
	return policy
}

// standingOf says how the VIP a stands here; "" means it is held as soon as may be. A VIP that is kept only for what is left of its
// connections is not withdrawn.
func standingOf(a netip.Addr, env *Env, in *Inputs, out *Desired) Standing {
	if in.VIPs.Len() == 0 && in.Pools.Len() == 0 {
		return ""
	}
	switch p := in.PolicyOf(a); {
	case p.Hold == HoldOne:
		return Owned
	case p.Withdraw != WithdrawNoEndpoint || out.Addresses.At(a) == 0:
		return ""
	}
	if away := in.Away.At(a); env.Standby || !Served(a, out.Frontends) || away.Withdrawn && !away.Until.IsZero() {
		return Withdrawn
	}
	return Serving
}

// Served reports whether a frontend on the VIP a has a backend that gets new connections.
func Served(a netip.Addr, frontends snap.Map[Key, *Frontend]) bool {
	for _, f := range On(frontends, a) {
		if !f.NodePort && f.Serves() {
			return true
		}
	}
	return false
}

// stand decides again how the VIP a stands here.
func (c *Compiler) stand(a netip.Addr) {
	var now Standing
	if c.out.Addresses.Has(a) {
		now = standingOf(a, &c.env, &c.in, &c.out)
	}
	if now == "" {
		c.out.Standings = c.out.Standings.Delete(a)
	} else {
		c.out.Standings = c.out.Standings.Set(a, now)
	}
}

// resettle marks what a change of the settings of addresses concerns.
func (c *Compiler) resettle(w *work, in *Inputs) {
	changed := map[netip.Addr]bool{}
	mark(changed, c.in.VIPs, in.VIPs, func(a netip.Addr) netip.Addr { return a })
	pools := false
	for range snap.Diff(c.in.Pools, in.Pools) {
		pools = true
	}
	if len(changed) == 0 && !pools {
		return
	}
	for name, s := range in.Services.All() {
		for _, a := range s.Addresses() {
			if pools || changed[a] {
				w.services[name], w.standings[a] = true, true
			}
		}
	}
	for a := range c.out.Addresses.Keys() { // of services that are gone, too
		if pools || changed[a] {
			w.standings[a] = true
		}
	}
}

// Away is what is remembered of a VIP that is withdrawn, or has come back.
type Away struct {
	// Withdrawn: it is withdrawn now.
	Withdrawn bool
	// Until is when it may come back again; zero means at once.
	Until time.Time
}

// returnPause is the least time between two returns of a VIP: a router that sees a route flap may dampen it for minutes.
const returnPause = 5 * time.Second

// withdraw notes which VIPs are withdrawn, and which have come back.
func (m Memory) withdraw(before, after Desired, now time.Time) Memory {
	for a, c := range snap.Diff(before.Standings, after.Standings) {
		away := m.Away.At(a)
		switch {
		case c.New == Withdrawn:
			away.Withdrawn = true
		case c.New != Serving:
			m.Away = m.Away.Delete(a)
			continue
		case c.Old == Withdrawn:
			away = Away{Until: now.Add(returnPause).UTC().Round(0)}
		default:
			continue
		}
		m.Away = m.Away.Set(a, away)
	}
	return m
}

// expireAway lets VIPs come back whose time has come.
func (m Memory) expireAway(now time.Time) Memory {
	for a, away := range m.Away.All() {
		switch {
		case away.Until.IsZero() || away.Until.After(now):
		case away.Withdrawn:
			m.Away = m.Away.Set(a, Away{Withdrawn: true})
		default:
			m.Away = m.Away.Delete(a)
		}
	}
	return m
}
