package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/cmd/internal/api"
)

// surroundings looks at what beside vipd owner has a say in whether VIPs outlive a host.
func (v *visit) surroundings(ctx context.Context, s *api.OwnerStatus) {
	for _, text := range s.Hindered {
		v.add(warning("vipd owner runs with less than it needs: "+text, "on a busy host it may be late, and lose its VIPs", "systemctl cat vipd-owner"))
	}
	v.majority(ctx, s)
	v.election()
	if text, err := v.Run(ctx, "systemd-detect-virt", "--vm"); err == nil && strings.TrimSpace(text) != "none" {
		v.add(note(fmt.Sprintf("this host is a virtual machine (%s), which answers for its VIPs for up to %s after a pause", strings.TrimSpace(text), v.Config.Ownership.Detect*5/16),
			"its clocks stop with it: put it on standby before a snapshot or a migration that pauses it for longer", "vipctl node standby "+s.Node+" --wait"))
	}
	if text := v.text("/etc/nftables.conf"); !v.kernelSince(6, 9) && strings.Contains(text, "flush ruleset") {
		if _, err := v.Run(ctx, "systemctl", "is-enabled", "nftables"); err == nil {
			v.add(warning("a restart of nftables.service flushes the gate of owned VIPs, too",
				"vipd owner puts it back within a second, and VIPs rest until then. Linux 6.9 and later keep it",
				"have /etc/nftables.conf delete its own tables instead of \"flush ruleset\""))
		}
	}
	v.gateways(s)
}

// majority finds hosts without which etcd has no majority: nothing can be taken over from them.
func (v *visit) majority(ctx context.Context, s *api.OwnerStatus) {
	members, err := v.Members(ctx)
	if err != nil || len(members) == 0 {
		return // that etcd is away is said already
	}
	hosts := map[string][]netip.Addr{s.Node: {netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}}
	devices, _ := v.Interfaces() // what can't be listed has no member
	for _, d := range devices {
		hosts[s.Node] = append(hosts[s.Node], d.Addrs...)
	}
	for _, p := range s.Peers {
		hosts[p.Node] = append(hosts[p.Node], p.Addresses...)
	}
	var single []string
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		without := 0
		for _, urls := range members {
			if !slices.ContainsFunc(urls, func(text string) bool { return slices.Contains(hosts[name], hostOf(text)) }) {
				without++
			}
		}
		if without <= len(members)/2 {
			single = append(single, name)
		}
	}
	if len(single) > 0 {
		v.add(warning("etcd has no majority without "+strings.Join(single, " or without "), "when that host dies, no other one can take its VIPs: run three members of etcd, one of them on a third machine",
			"etcdctl member list"))
	}
}

// hostOf returns the address in a URL; it is not valid where there is none.
func hostOf(text string) netip.Addr {
	u, err := url.Parse(text)
	if err != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(u.Hostname())
	return a.Unmap()
}

// election looks at how long an etcd that runs here takes to elect a leader.
func (v *visit) election() {
	words := v.Words("etcd")
	if len(words) == 0 {
		return
	}
	for _, word := range words {
		if file, ok := setting(word, "config-file"); ok {
			words = append(words, strings.Split(strings.ReplaceAll(v.text(file), ": ", "="), "\n")...)
		}
	}
	timeout := 1000
	for i, word := range words {
		if word == "--election-timeout" && i+1 < len(words) {
			word += "=" + words[i+1]
		}
		if text, ok := setting(word, "election-timeout"); ok {
			if n, err := strconv.Atoi(text); err == nil {
				timeout = n
			}
		}
	}
	if timeout >= 1000 {
		v.add(note(fmt.Sprintf("etcd here elects a leader after %s without one", time.Duration(timeout)*time.Millisecond),
			"if a host dies that has etcd's leader, its VIPs rest for that long, too. On a LAN 50/500 ms are advised", "etcd --heartbeat-interval=50 --election-timeout=500"))
	}
}

// setting returns the value of a setting of etcd: of --NAME=VALUE, ETCD_NAME=VALUE or NAME=VALUE.
func setting(word, name string) (value string, ok bool) {
	key, value, ok := strings.Cut(strings.TrimSpace(word), "=")
	key = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(strings.TrimLeft(key, "-"), "ETCD_")), "_", "-")
	return strings.Trim(value, ` "'`), ok && key == name
}

// gateways finds owned VIPs whose services keep the clients' addresses, and with which no gateway of the endpoints moves.
func (v *visit) gateways(s *api.OwnerStatus) {
	inner := map[string]bool{}
	for _, vip := range s.VIPs {
		if vip.Group != "" && !vip.Serves {
			inner[vip.Group] = true
		}
	}
	var without []string
	for _, a := range slices.SortedFunc(maps.Keys(s.VIPs), netip.Addr.Compare) {
		if vip := s.VIPs[a]; vip.KeepsSource && !inner[vip.Group] {
			without = append(without, a.String())
		}
	}
	if len(without) > 0 {
		v.add(note(list(without)+": no VIP without a service is in the group, as a gateway of the endpoints",
			"where snat leaves the clients' addresses, replies must come back through the owner: have such a VIP move with it, or set snat = \"always\"", ""))
	}
}
