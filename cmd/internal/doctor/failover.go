package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/wording"
)

// checkOwnership checks whether the kernel can fence the VIPs that this host owns. It then runs the
// checks that need vipd owner's status.
func checkOwnership(ctx context.Context, o *observed) []Finding {
	switch {
	case !o.Config.Ownership.Enabled:
		return nil
	case !o.Root:
		return []Finding{note("only root can test whether the kernel can fence VIPs that have one owner", "", "sudo vipctl doctor")}
	}
	if err := o.Fence(); err != nil {
		what, _, _ := strings.Cut(oneLine(err), ": nf_tables refused")
		return []Finding{problem("this host can't own VIPs (hold = \"one\"): "+what, "after a pause, an owner would still answer for VIPs that have a new owner",
			"use Linux 5.16 or later with netdev ingress and egress, or set ownership.enabled = false")}
	}
	found := []Finding{fine("the kernel can fence VIPs that have one owner: netdev ingress and egress")}
	if o.sysctl("kernel.sched_rt_runtime_us") == "0" {
		found = append(found, problem("no process can run with real-time priority on this host", "vipd owner would be late on a busy host, and lose its VIPs", "sysctl -w kernel.sched_rt_runtime_us=950000"))
	}
	s, err := o.Owner()
	if err != nil {
		return append(found, problem("vipd owner does not answer, so this host owns no VIPs: "+oneLine(err), "", "systemctl enable --now vipd-owner"))
	}
	type ownerCheck = func(context.Context, *observed, *api.OwnerStatus) []Finding
	checks := []ownerCheck{ownerState, ownerSession, otherHolders, ownerLimits, etcdMajority, etcdElection, virtualMachine, flushedGate, gateways}
	if s.VRRP != nil {
		checks = []ownerCheck{ownerState, ownerGroups, vrrpRouters, advertDrops, otherHolders, ownerLimits, virtualMachine, flushedGate, gateways}
	}
	for _, check := range checks {
		found = append(found, check(ctx, o, s)...)
	}
	return found
}

// maxRefreshDelay is the maximum acceptable delay when vipd owner periodically refreshes the gate
// (the rules that block a host's VIPs once it may no longer own them). After a much longer delay,
// vipd owner loses its VIPs.
const maxRefreshDelay = 100 * time.Millisecond

// ownerState returns the problems and delays that vipd owner reports, and the VIPs that are in no
// device's network.
func ownerState(_ context.Context, _ *observed, s *api.OwnerStatus) (found []Finding) {
	for _, text := range s.Problems {
		found = append(found, problem(text, "", ""))
	}
	if s.Late > maxRefreshDelay.Seconds() {
		found = append(found, warning(fmt.Sprintf("vipd owner waited %s for a processor", time.Duration(s.Late*float64(time.Second)).Round(time.Millisecond)),
			"it needs real-time priority: LimitRTPRIO, CAP_SYS_NICE and RestrictRealtime=no, as in its systemd unit", "journalctl -u vipd-owner -p warning"))
	}
	if len(s.Unplaced) > 0 {
		found = append(found, warning(list(addresses(s.Unplaced))+": not in the network of any device on this host", "only a host with a device in the VIP's network can own the VIP",
			"give a device an address in that network, or list other devices in ownership.interfaces"))
	}
	return found
}

// ownerGroups returns each VRRP group's state and problems.
func ownerGroups(_ context.Context, _ *observed, s *api.OwnerStatus) (found []Finding) {
	if len(s.VRRP.Groups) == 0 {
		return []Finding{problem("this host has no VRRP group, so it owns no VIPs", "vipctl status shows the reason", "vipctl status")}
	}
	for _, g := range s.VRRP.Groups {
		for _, text := range g.Problems {
			found = append(found, warning(text, "hosts that drop each other's adverts both own the VIPs", ""))
		}
		switch {
		case g.State == vrrp.Active || g.Owner.IsValid():
			found = append(found, fine(fmt.Sprintf("%s is %s (router_id %d, priority %d)", g.Name, g.State, g.RouterID, g.Priority)))
		default:
			found = append(found, warning(fmt.Sprintf("%s is %s, and no owner is known", g.Name, g.State),
				"its adverts might not leave this host: check the setting source, and firewall rules for IP protocol 112", "journalctl -u vipd-owner"))
		}
	}
	return found
}

// ownerSession checks vipd owner's connections to etcd and to the other hosts, which must confirm
// it. If there is no problem, it lists these hosts.
func ownerSession(_ context.Context, o *observed, s *api.OwnerStatus) (found []Finding) {
	for _, node := range slices.Sorted(maps.Keys(s.Waiting)) {
		who := s.Waiting[node]
		found = append(found, problem(fmt.Sprintf("VIPs of %s have no owner: %s %s silent", node, list(who), wording.Be(len(who))),
			"too few hosts are left to decide whether the node is off or only unreachable: make sure that it is off", "vipctl node fence "+node+" --is-off"))
	}
	if s.Etcd != "" {
		found = append(found, warning("vipd owner can't reach etcd: "+s.Etcd, "owners keep their VIPs, and no VIP can move", ""))
	}
	if s.Gate != "open" {
		found = append(found, warning("vipd owner is not confirmed by other hosts or by etcd, so its VIPs are silent", "its log shows the reason", "journalctl -u vipd-owner"))
	}
	var silent []string
	for _, node := range slices.Sorted(maps.Keys(s.Confirmed)) {
		if age := s.Confirmed[node]; age < 0 || age > 1 {
			silent = append(silent, node)
		}
	}
	switch {
	case len(s.Confirmed) == 0 && s.Gate == "open": // while the gate is closed, other hosts are unknown
		found = append(found, note("no other host participates in owning VIPs", "only etcd confirms this host, and no other host would take over its VIPs", ""))
	case len(silent) > 0:
		found = append(found, warning(fmt.Sprintf("%s %s not confirm this host", list(silent), wording.Do(len(silent))),
			"heartbeats use UDP port 9898, between the hosts' addresses in the VIPs' networks and the addresses that they use to reach etcd", "nft list ruleset | grep -n 9898"))
	}
	for _, p := range s.Peers {
		if !p.Up && !slices.Contains(silent, p.Node) {
			found = append(found, warning(fmt.Sprintf("%s does not answer on %s", p.Node, p.Network), "UDP port 9898 is dropped on the way, or the network is down. Hosts report the loss of a LAN to each other through another network",
				"nft list ruleset | grep -n 9898"))
		}
	}
	if len(found) == 0 {
		found = append(found, fine("vipd owner is confirmed by "+list(slices.Sorted(maps.Keys(s.Confirmed)))))
	}
	return found
}

// otherHolders looks for owned VIPs in the configurations of keepalived and vip-manager, if these
// programs are running.
func otherHolders(_ context.Context, o *observed, s *api.OwnerStatus) (found []Finding) {
	for _, other := range []struct{ program, file string }{
		{"keepalived", "/etc/keepalived/keepalived.conf"}, {"vip-manager", "/etc/default/vip-manager.yml"}, {"vip-manager", "/etc/patroni/vip-manager.yml"},
	} {
		if !o.runs(other.program) {
			continue
		}
		words := strings.FieldsFunc(o.text(other.file), func(r rune) bool { return strings.ContainsRune(" \t\n{}\"'/", r) })
		for _, a := range slices.Concat(s.Bound, s.Unowned) {
			if slices.Contains(words, a.String()) {
				found = append(found, problem(fmt.Sprintf("%s also has %s in its configuration", other.program, a), "two hosts could answer for the address: remove it from one of the configurations", "grep -n "+a.String()+" "+other.file))
			}
		}
	}
	return found
}

func addresses(all []netip.Addr) (texts []string) {
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return texts
}
