package owner

import (
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/wording"
	onhost "vipd/dataplane/failover"
)

// witness holds the hosts that must be within reach of each group. They are on the links of the
// group's VIPs.
type witness struct {
	// takes reports whether this host takes over from a silent owner only if one of these hosts
	// answers.
	takes bool
	// hosts maps each group to the hosts that must be within reach. A group keeps these hosts when
	// they are withdrawn, because a host that loses its LAN may also lose its default gateway.
	hosts map[string][]netip.Addr
	// groups maps each interface to its groups. withdrawn lists the groups that currently have no
	// hosts.
	groups    map[string][]string
	withdrawn []string
}

// follow updates the hosts from a layout, and returns the groups whose hosts have changed.
func (w *witness) follow(l onhost.Layout, all []config.VRRPGroup) (changed []string) {
	before := w.hosts
	w.hosts = map[string][]netip.Addr{}
	w.groups = map[string][]string{}
	w.withdrawn = nil
	for i := range all {
		g := &all[i]
		var on []string
		var hosts []netip.Addr
		for _, a := range g.VIPs {
			if name := l.Devices[a]; name != "" && !slices.Contains(on, name) {
				on, hosts = append(on, name), append(hosts, l.Reach[name]...)
				w.groups[name] = append(w.groups[name], g.Name)
			}
		}
		former := before[g.Name]
		switch {
		case len(hosts) == 0 && len(former) > 0:
			hosts, w.withdrawn = former, append(w.withdrawn, g.Name)
		case len(former) > 0 && !slices.Equal(hosts, former):
			changed = append(changed, g.Name)
		}
		if len(hosts) > 0 {
			w.hosts[g.Name] = hosts
		}
	}
	return changed
}

// of returns how a group's hosts affect ownership.
func (w *witness) of(g *config.VRRPGroup) vrrp.Witness {
	switch {
	case len(w.hosts[g.Name]) == 0:
		return vrrp.NoWitness
	case w.takes:
		return vrrp.WitnessRequired
	}
	return vrrp.WitnessResigns
}

// silent describes the groups that this host would not take over, because their hosts do not
// answer.
func (w *witness) silent(groups []string) (all []string) {
	for _, name := range groups {
		var hosts []string
		for _, a := range w.hosts[name] {
			hosts = append(hosts, a.String())
		}
		all = append(all, fmt.Sprintf("%s could not be taken over here: no host of ownership.reach answers (%s); fix ownership.reach, or set ownership.reach_takes = false",
			name, wording.Some(hosts, 3)))
	}
	return all
}

// problems describes the groups whose hosts have been withdrawn.
func (w *witness) problems() (all []string) {
	for _, name := range w.withdrawn {
		all = append(all, fmt.Sprintf("%s has no host for ownership.reach: the route via %s is withdrawn; add a default route, or set ownership.reach",
			name, w.hosts[name][0]))
	}
	return all
}
