package balancer

import (
	"net/netip"
	"slices"
)

// fromEtcd reports whether s is in etcd, where others than this host's own administrators may write.
func fromEtcd(s *Service) bool { return s.Origin.Key != "" }

// ExecUser is whom exec checks run as where their definition names nobody, and vipd itself is root.
const ExecUser = "nobody"

// WantsUser reports whether s is in etcd and asks that programs run as somebody else than ExecUser. No node does that:
// health.allow_exec lets others run programs on it, but not be root, nor a group that is as good.
func WantsUser(s *Service) bool {
	h := s.Health
	return fromEtcd(s) && h != nil && h.Type == ExecHealth && h.User != "" && h.User != ExecUser
}

// reserved says what vip is that services from etcd may not claim it on a node; "": nothing of that kind.
func reserved(env *Env, vip netip.Addr) string {
	i := slices.IndexFunc(env.Reserved, func(r Reserved) bool { return r.Addr == vip })
	if i < 0 || slices.Contains(env.Allowed, alone(vip)) {
		return ""
	}
	return env.Reserved[i].What
}

// alone is the network of a alone.
func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// trusted reports whether a node whose addresses.allowed is this takes an endpoint at a from etcd. What listens on loopback
// or link-local addresses is often open to whoever gets there, such as a cloud's metadata: nobody who may write in etcd is
// to publish it at a VIP, nor to have checks sent to it. Loopback ones are taken where clients are programs of this host
// (here), which get there anyway; else both are where allowed has a network of such addresses alone that holds a.
func trusted(allowed []netip.Prefix, a netip.Addr, here bool) bool {
	var bits int // of the greatest network that has such addresses alone
	switch {
	case notUnicast(a) != "":
		return false
	case a.IsLoopback() && here:
		return true
	case a.IsLoopback() && a.Is4():
		bits = 8
	case a.IsLoopback():
		bits = 128
	case a.IsLinkLocalUnicast() && a.Is4():
		bits = 16
	case a.IsLinkLocalUnicast():
		bits = 10
	default:
		return true
	}
	return slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Bits() >= bits && p.Contains(a) })
}

// onlyHere reports whether s has VIPs on loopback alone, which its node grants it: no client comes from elsewhere.
func onlyHere(allowed []netip.Prefix, s *Service) bool {
	if slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 }) {
		return false
	}
	return !slices.ContainsFunc(s.Addresses(), func(vip netip.Addr) bool {
		return !vip.IsLoopback() || fromEtcd(s) && !containsAddr(allowed, vip)
	})
}
