package balancer

import (
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/snap"
)

// VIPState is a host's state of a VIP that has settings. A host holds a VIP without settings as
// soon as possible.
type VIPState string

// These are the states.
const (
	// Serving means that the host holds the VIP as soon as it has applied a frontend on the VIP
	// that has a usable endpoint. The frontend must come first, because routers send clients as
	// soon as the address exists.
	Serving VIPState = "serving"
	// Withdrawn means that the host does not hold the VIP because no endpoint of the services on
	// the VIP is usable, or because the host is on standby.
	Withdrawn VIPState = "withdrawn"
	// Owned means that the host adds the VIP to a real device only while it is the VIP's owner
	// (HoldOne).
	Owned VIPState = "owned"
)

// Pool is a set of networks, and the settings of the addresses in them.
type Pool struct {
	Name Name `toml:"-"`
	// Origin is where the pool is defined.
	Origin Origin         `toml:"-"`
	CIDRs  []netip.Prefix `toml:"cidrs"`
	VIPPolicy
}

// PolicyOf returns the settings of an address. The address's own settings have priority. The other
// settings come from the pool with the smallest network that contains the address, or from vipd's
// defaults if there is no such pool.
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

// vipStateOf returns the state of the VIP a on this host. It returns "" if the VIP is held as soon
// as possible. A VIP that remains only for its last connections is not withdrawn.
func vipStateOf(a netip.Addr, env *Env, in *Inputs, out *Desired) VIPState {
	if in.VIPs.Len() == 0 && in.Pools.Len() == 0 {
		return ""
	}
	switch p := in.PolicyOf(a); {
	case p.Hold == HoldOne:
		return Owned
	case p.Withdraw != WithdrawNoEndpoint || out.Addresses.At(a) == 0:
		return ""
	}
	if away := in.Withdrawals.At(a); env.Standby || !Served(a, out.Frontends) || away.Withdrawn && !away.Until.IsZero() {
		return Withdrawn
	}
	return Serving
}

// Served reports whether a frontend on the VIP a has a backend that gets new connections.
func Served(a netip.Addr, frontends snap.Map[Key, *Frontend]) bool {
	for _, f := range FrontendsOn(frontends, a) {
		if !f.NodePort && f.Serves() {
			return true
		}
	}
	return false
}

func (c *Compiler) updateVIPState(a netip.Addr) {
	var state VIPState
	if c.out.Addresses.Has(a) {
		state = vipStateOf(a, &c.env, &c.in, &c.out)
	}
	if state != "" || c.out.VIPStates.Has(a) {
		c.out.Frontends = markWithdrawn(a, state, &c.env, c.out.Frontends)
	}
	if state == "" {
		c.out.VIPStates = c.out.VIPStates.Delete(a)
	} else {
		c.out.VIPStates = c.out.VIPStates.Set(a, state)
	}
}

// markWithdrawn sets the field Withdrawn of the frontends on the VIP a. It does not mark them
// merely because the host is on standby: the host still serves clients whose packets routers send
// to it. It does not mark frontends on an address that the host has independently of vipd, because
// clients would then reach the host's own programs.
func markWithdrawn(a netip.Addr, state VIPState, env *Env, frontends snap.Map[Key, *Frontend]) snap.Map[Key, *Frontend] {
	withdrawn := state == Withdrawn && !Served(a, frontends) && !env.has(a) && !a.IsLinkLocalUnicast() // env.Local omits link-local addresses
	for k, f := range FrontendsOn(frontends, a) {
		if !f.NodePort && f.Withdrawn != withdrawn {
			frontends = frontends.Set(k, f.withWithdrawn(withdrawn))
		}
	}
	return frontends
}

// has reports whether the node has the address a independently of vipd. It returns false for
// link-local addresses.
func (env *Env) has(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(env.Local, a) }

func (f *Frontend) withWithdrawn(withdrawn bool) *Frontend {
	if f.Withdrawn == withdrawn {
		return f
	}
	g := *f
	g.Withdrawn = withdrawn
	return &g
}

// markPolicyChanges marks the services and VIPs that changes to the settings of addresses or pools
// affect.
func (c *Compiler) markPolicyChanges(w *work, in *Inputs) {
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
				w.services[name], w.vipStates[a] = true, true
			}
		}
	}
	for a := range c.out.Addresses.Keys() { // including removed services' VIPs
		if pools || changed[a] {
			w.vipStates[a] = true
		}
	}
}

// Withdrawal is the history of a VIP that is withdrawn, or has recently returned.
type Withdrawal struct {
	// Withdrawn reports whether the VIP is currently withdrawn.
	Withdrawn bool
	// Until is when the VIP may be announced again. Zero means immediately.
	Until time.Time
}

// returnPause is the minimum time between two returns of a VIP, because routers suppress a flapping
// route for minutes.
const returnPause = 5 * time.Second

// recordWithdrawals records which VIPs were withdrawn or have returned.
func (m Memory) recordWithdrawals(before, after Desired, now time.Time) Memory {
	for a, c := range snap.Diff(before.VIPStates, after.VIPStates) {
		away := m.Withdrawals.At(a)
		switch {
		case c.New == Withdrawn:
			away.Withdrawn = true
		case c.New != Serving:
			m.Withdrawals = m.Withdrawals.Delete(a)
			continue
		case c.Old == Withdrawn:
			away = Withdrawal{Until: now.Add(returnPause).UTC().Round(0)}
		default:
			continue
		}
		m.Withdrawals = m.Withdrawals.Set(a, away)
	}
	return m
}

// expireWithdrawals lets each VIP return when its pause is over.
func (m Memory) expireWithdrawals(now time.Time) Memory {
	for a, away := range m.Withdrawals.All() {
		switch {
		case away.Until.IsZero() || away.Until.After(now):
		case away.Withdrawn:
			m.Withdrawals = m.Withdrawals.Set(a, Withdrawal{Withdrawn: true})
		default:
			m.Withdrawals = m.Withdrawals.Delete(a)
		}
	}
	return m
}
