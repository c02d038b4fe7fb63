package balancer

import (
	"net/netip"
	"slices"
)

// isRealServer reports whether this host is a real server of the service: the service uses direct
// routing, and one of its endpoints is at an address in env.Local.
func (u *compiledService) isRealServer(env *Env) bool {
	return env.RealServer && u.service.Forward == DRForward &&
		slices.ContainsFunc(u.endpoints, func(e *Endpoint) bool { return slices.Contains(env.Local, e.Address) })
}

// holdDirect adds to u.direct the VIPs that this host holds as a real server. It returns the other
// VIPs, and adds a warning about them. This host may own these VIPs as their gateway.
func (u *compiledService) holdDirect(env *Env, in *Inputs, vips []netip.Addr) (others []netip.Addr) {
	for _, vip := range vips {
		if env.MayOwn && in.PolicyOf(vip).Hold == HoldOne {
			u.problem(SeverityWarning, "vips", "%s is not held for direct routing, because this host can own it (hold = \"one\") and would then be a gateway for the VIP: "+
				"disable ownership on this host, or remove this host's endpoint", vip)
			others = append(others, vip)
			continue
		}
		u.direct = append(u.direct, vip)
	}
	return others
}

// updateDirect updates the entry of a VIP in Desired.Direct. If this host holds the VIP as a real
// server of several services, the entry names the alphabetically first of them.
func (c *Compiler) updateDirect(a netip.Addr) {
	var names []Name
	for _, name := range c.index.At(a) {
		if u := c.compiled[name]; u != nil && slices.Contains(u.direct, a) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		c.out.Direct = c.out.Direct.Delete(a)
		return
	}
	c.out.Direct = c.out.Direct.Set(a, slices.Min(names))
}
