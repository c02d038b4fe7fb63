package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
)

// keepalivedFile is keepalived's configuration.
const keepalivedFile = "/etc/keepalived/keepalived.conf"

// sameRouterID looks for a keepalived on this host with the router ID of a group.
func sameRouterID(_ context.Context, o *observed, _ *api.OwnerStatus) (found []Finding) {
	if !o.runs("keepalived") {
		return nil
	}
	words := strings.Fields(strings.NewReplacer("{", " { ", "}", " } ").Replace(o.text(keepalivedFile)))
	for _, name := range slices.Sorted(maps.Keys(o.Config.Ownership.VRRP)) {
		g := o.Config.Ownership.VRRP[name]
		if keepalivedHas(words, &g) {
			found = append(found, problem(fmt.Sprintf("keepalived runs here with router ID %d, which %s has", g.RouterID, name),
				"two routers of one host own the same VIPs: stop keepalived, or choose another router_id", "systemctl disable --now keepalived"))
		}
	}
	return found
}

// keepalivedHas reports whether a vrrp_instance has the router ID of a group, and not another
// interface.
func keepalivedHas(words []string, g *config.VRRP) bool {
	device := ""
	id := 0
	same := func() bool {
		return id == g.RouterID && id != 0 && (device == "" || g.Interface == "" || device == g.Interface)
	}
	for i, word := range words {
		next := ""
		if i+1 < len(words) {
			next = words[i+1]
		}
		switch word {
		case "vrrp_instance":
			if same() {
				return true
			}
			device, id = "", 0
		case "interface":
			device = next
		case "virtual_router_id":
			id, _ = strconv.Atoi(next) // 0 if it is not a number
		}
	}
	return same()
}

// vrrpRouters compares this host with the other routers of its groups.
func vrrpRouters(_ context.Context, o *observed, s *api.OwnerStatus) (found []Finding) {
	for _, g := range s.VRRP.Groups {
		settings := o.Config.Ownership.VRRP[g.Name]
		lists := false
		for _, r := range g.Routers {
			lists = lists || r.Dropped == vrrp.WrongList
			if r.Age >= 0 && int(r.Priority) == settings.Priority {
				found = append(found, warning(fmt.Sprintf("%s has the priority of this host in %s: %d", r.Addr, g.Name, r.Priority),
					"after both start, the higher address owns the VIPs: give each host another priority", ""))
			}
		}
		if lists {
			found = append(found, note(fmt.Sprintf("router_id %d is used by a router with other addresses; free on this LAN: %s", g.RouterID, freeRouterIDs(s, &o.Config)), "", ""))
		}
		if len(settings.Peers) > 0 && g.State == vrrp.Active && len(g.Routers) == 0 {
			found = append(found, note(fmt.Sprintf("no router of peers was ever received in %s", g.Name),
				"a backup is silent, so this is normal if this host has always been the owner; otherwise IP protocol 112 is dropped on the way", "nft list ruleset | grep -n -e vrrp -e 112"))
		}
		if len(s.Hindered) > 0 && settings.AdvertInterval < 200*time.Millisecond {
			found = append(found, warning(fmt.Sprintf("%s sends adverts every %s, but vipd owner may be late here", g.Name, settings.AdvertInterval),
				"a late advert moves the VIPs: set advert_interval to 200ms or more on all hosts", ""))
		}
	}
	return found
}

// freeRouterIDs lists some router IDs that no group has, and that no router used recently.
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
