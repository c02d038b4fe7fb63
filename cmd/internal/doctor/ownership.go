package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/wording"
)

// checkOwnership tries, where this host is to own VIPs, whether its kernel can silence it for them, and looks at how its vipd owner is.
func checkOwnership(ctx context.Context, v *visit) {
	switch {
	case !v.Config.Ownership.Enabled:
		return
	case !v.Root:
		v.add(note("whether the kernel can fence VIPs that have one owner can't be tried", "it takes root", "sudo vipctl doctor"))
		return
	}
	if err := v.Fence(); err != nil {
		what, _, _ := strings.Cut(oneLine(err), ": nf_tables refused")
		v.add(problem("this host can own no VIPs (hold = \"one\"): "+what, "an owner that is frozen would go on to answer for its VIPs beside the next one",
			"use a kernel of Linux 5.16 or later with netdev ingress and egress, or set ownership.enabled = false"))
		return
	}
	v.add(fine("the kernel can fence VIPs that have one owner: netdev ingress and egress"))
	if v.sysctl("kernel.sched_rt_runtime_us") == "0" {
		v.add(problem("no process may run with real-time priority here", "vipd owner would be late on a busy host, and lose its VIPs", "sysctl -w kernel.sched_rt_runtime_us=950000"))
	}
	s, err := v.Owner()
	if err != nil {
		v.add(problem("vipd owner does not answer, so this host owns no VIPs: "+oneLine(err), "", "systemctl enable --now vipd-owner"))
		return
	}
	v.session(s)
	v.otherHolders(s)
	v.surroundings(ctx, s)
}

// late is by how much a refresh of the gate may be late without a VIP's resting.
const late = 100 * time.Millisecond

// session looks at who confirms the session of the owner, and what is in its way.
func (v *visit) session(s *api.OwnerStatus) {
	before := len(v.found)
	for _, text := range s.Problems {
		v.add(problem(text, "", ""))
	}
	for _, node := range slices.Sorted(maps.Keys(s.Waiting)) {
		who := s.Waiting[node]
		v.add(problem(fmt.Sprintf("VIPs of %s have no owner: %s %s silent", node, list(who), wording.Be(len(who))),
			"too few hosts are left to tell a host that is off from one that is cut off: make sure that it is off", "vipctl node fence "+node+" --is-off"))
	}
	if s.Etcd != "" {
		v.add(warning("vipd owner does not reach etcd: "+s.Etcd, "owners stay, and nothing can move", ""))
	}
	if s.Gate != "open" {
		v.add(warning("vipd owner is not confirmed by other hosts or by etcd: VIPs rest here", "it says how it is in its log", "journalctl -u vipd-owner"))
	}
	var silent []string
	for _, node := range slices.Sorted(maps.Keys(s.Confirmed)) {
		if age := s.Confirmed[node]; age < 0 || age > 1 {
			silent = append(silent, node)
		}
	}
	switch {
	case len(s.Confirmed) == 0 && s.Gate == "open": // without a session that is not known
		v.add(note("no other host takes part in owning VIPs", "etcd alone confirms this one, and none would take its VIPs over", ""))
	case len(silent) > 0:
		v.add(warning(fmt.Sprintf("%s %s not confirm this host", list(silent), wording.Do(len(silent))),
			"heartbeats go by UDP port 9898, between all addresses that hosts have in the VIPs' networks or reach etcd from", "nft list ruleset | grep -n 9898"))
	}
	for _, p := range s.Peers {
		if !p.Up && !slices.Contains(silent, p.Node) {
			v.add(warning(fmt.Sprintf("%s is not heard on %s", p.Node, p.Network), "UDP port 9898 is dropped on the way, or the network is cut: the hosts tell each other of a lost LAN by another network",
				"nft list ruleset | grep -n 9898"))
		}
	}
	if s.Late > late.Seconds() {
		v.add(warning(fmt.Sprintf("vipd owner had to wait %s for a processor", time.Duration(s.Late*float64(time.Second)).Round(time.Millisecond)),
			"it needs real-time priority: LimitRTPRIO, CAP_SYS_NICE and RestrictRealtime=no, as its unit has them", "journalctl -u vipd-owner -p warning"))
	}
	if len(s.Unplaced) > 0 {
		v.add(warning(list(addresses(s.Unplaced))+": no device of this host has a network with it", "only hosts that have one can own such a VIP",
			"give a device an address of that network, or name others in ownership.interfaces"))
	}
	if len(v.found) == before {
		v.add(fine("vipd owner is confirmed by " + list(slices.Sorted(maps.Keys(s.Confirmed)))))
	}
}

// otherHolders looks for programs that hold the same VIPs by themselves.
func (v *visit) otherHolders(s *api.OwnerStatus) {
	for _, other := range []struct{ program, file string }{
		{"keepalived", "/etc/keepalived/keepalived.conf"}, {"vip-manager", "/etc/default/vip-manager.yml"}, {"vip-manager", "/etc/patroni/vip-manager.yml"},
	} {
		if !v.runs(other.program) {
			continue
		}
		words := strings.FieldsFunc(v.text(other.file), func(r rune) bool { return strings.ContainsRune(" \t\n{}\"'/", r) })
		for _, a := range slices.Concat(s.Bound, s.Unowned) {
			if slices.Contains(words, a.String()) {
				v.add(problem(fmt.Sprintf("%s has %s in its configuration, too", other.program, a), "two hosts would answer for it: leave it to one of the two", "grep -n "+a.String()+" "+other.file))
			}
		}
	}
}

func addresses(all []netip.Addr) (texts []string) {
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return texts
}
