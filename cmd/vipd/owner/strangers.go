package owner

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
	onhost "vipd/dataplane/failover"
)

// strangers holds strangers: routers that send adverts with a router ID that none of this host's
// groups uses. If a stranger lists a group's VIP, both hosts own the VIP, because they ignore each
// other's adverts.
type strangers struct {
	of map[strangerKey]stranger
}

type strangerKey struct {
	addr netip.Addr
	id   uint8
}

// stranger is a router's last advert. noted is when an event about the router was last recorded.
type stranger struct {
	advert    *vrrp.Advert
	at, noted local.Time
}

const (
	// strangerKept is how long a stranger is reported, and the minimum time between two events
	// about it.
	strangerKept = time.Minute
	// maxStrangers is the maximum number of strangers. It is limited because anybody on the LAN can
	// forge adverts.
	maxStrangers = 32
)

// receive handles an advert. It returns a note (an event) if the advert lists a group's VIP.
func (x *strangers) receive(now local.Time, a *onhost.Advert, groups []vrrp.Group) (actions []local.Action) {
	if len(a.Data) < 2 || slices.ContainsFunc(groups, func(g vrrp.Group) bool { return g.RouterID == a.Data[1] }) {
		return nil
	}
	advert, _, err := vrrp.Decode(a.Data, a.From.Unmap().WithZone(""), a.To.Unmap().WithZone(""))
	if err != nil || a.TTL != vrrp.TTL {
		return nil
	}
	key := strangerKey{a.From.Unmap().WithZone(""), advert.RouterID}
	maps.DeleteFunc(x.of, func(_ strangerKey, s stranger) bool { return now.Since(s.at) >= strangerKept })
	before, known := x.of[key]
	if !known && len(x.of) >= maxStrangers {
		return nil
	}
	if x.of == nil {
		x.of = map[strangerKey]stranger{}
	}
	s := stranger{advert: advert, at: now, noted: before.noted}
	if text := s.text(key.addr, groups); text != "" && (s.noted == 0 || now.Since(s.noted) >= strangerKept) {
		s.noted = now
		actions = append(actions, local.Note{Kind: local.NoteRefused, Text: text, Why: "router_id"})
	}
	x.of[key] = s
	return actions
}

// text describes a stranger that lists a group's VIP, or returns "".
func (s *stranger) text(from netip.Addr, groups []vrrp.Group) string {
	for _, g := range groups {
		if i := slices.IndexFunc(s.advert.Addrs, func(a netip.Addr) bool { return slices.Contains(g.VIPs, a) }); i >= 0 {
			return fmt.Sprintf("%s sends adverts for %s with router_id %d, but %s has %d here: both hosts own the VIP, so set the same router_id on both",
				from, s.advert.Addrs[i], s.advert.RouterID, g.Name, g.RouterID)
		}
	}
	return ""
}

// list returns the problems with strangers, and the router IDs in use on the LAN.
func (x *strangers) list(now local.Time, groups []vrrp.Group) (problems []string, ids []int) {
	keys := slices.SortedFunc(maps.Keys(x.of), func(a, b strangerKey) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.id, b.id)) })
	for _, key := range keys {
		s := x.of[key]
		if now.Since(s.at) >= strangerKept {
			continue
		}
		ids = append(ids, int(key.id))
		if text := s.text(key.addr, groups); text != "" {
			problems = append(problems, text)
		}
	}
	slices.Sort(ids)
	return problems, slices.Compact(ids)
}
