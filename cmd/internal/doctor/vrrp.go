package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
)

// vrrpRouters compares this host's settings with other routers' adverts in its VRRP groups.
func vrrpRouters(_ context.Context, o *observed, s *api.OwnerStatus) (found []Finding) {
	for _, g := range s.VRRP.Groups {
		settings := o.Config.Ownership.VRRP[g.Name]
		lists := false
		for _, r := range g.Routers {
			lists = lists || r.Dropped == vrrp.WrongList
			if r.Age >= 0 && int(r.Priority) == settings.Priority {
				found = append(found, warning(fmt.Sprintf("%s has the same priority as this host in %s: %d", r.Addr, g.Name, r.Priority),
					"when both start, the host with the higher address owns the VIPs: give each host a different priority", ""))
			}
		}
		if lists {
			found = append(found, note(fmt.Sprintf("another router uses router_id %d for other VIPs; IDs that are free on this LAN: %s", g.RouterID, freeRouterIDs(s, &o.Config)), "", ""))
		}
		if len(settings.Peers) > 0 && g.State == vrrp.Active && len(g.Routers) == 0 {
			found = append(found, note(fmt.Sprintf("group %s has never received an advert from its peers", g.Name),
				"a backup is silent, so this is normal if this host has always been the owner; otherwise IP protocol 112 is dropped on the way", "nft list ruleset | grep -n -e vrrp -e 112"))
		}
		if len(s.Hindered) > 0 && settings.AdvertInterval < 200*time.Millisecond {
			found = append(found, warning(fmt.Sprintf("%s sends adverts every %s, but vipd owner might be late here", g.Name, settings.AdvertInterval),
				"if an advert is late, the VIPs move: set advert_interval to 200ms or more on all hosts", ""))
		}
	}
	return found
}

// freeRouterIDs lists up to three router IDs that neither a configured group nor a router seen on
// the LAN uses.
func freeRouterIDs(s *api.OwnerStatus, c *config.Config) string {
	const listed = 3
	var free []string
	used := slices.Clone(s.RouterIDs)
	for _, g := range c.Ownership.VRRP {
		used = append(used, g.RouterID)
	}
	for id := 1; id <= 255 && len(free) < listed; id++ {
		if !slices.Contains(used, id) {
			free = append(free, strconv.Itoa(id))
		}
	}
	return strings.Join(free, ", ")
}
