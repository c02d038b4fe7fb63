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

// ownerLimits returns a warning for each privilege or resource that vipd owner lacks.
func ownerLimits(_ context.Context, _ *observed, s *api.OwnerStatus) (found []Finding) {
	for _, text := range s.Hindered {
		found = append(found, warning("vipd owner lacks a privilege or a limit that it needs: "+text, "on a busy host it might be late, and lose its VIPs", "systemctl cat vipd-owner"))
	}
	return found
}

// virtualMachine returns a note if this host is a virtual machine. Pausing it also stops its
// clocks, so after a pause it still answers for its VIPs for a short time.
func virtualMachine(ctx context.Context, o *observed, s *api.OwnerStatus) []Finding {
	text, err := o.Run(ctx, "systemd-detect-virt", "--vm")
	if err != nil || strings.TrimSpace(text) == "none" {
		return nil
	}
	return []Finding{note(fmt.Sprintf("this host is a virtual machine (%s), which answers for its VIPs for up to %s after a pause", strings.TrimSpace(text), o.Config.Ownership.Detect*5/16),
		"its clocks stop during a pause: put the node on standby before a snapshot or a migration with a longer pause", "vipctl node standby "+s.Node+" --wait")}
}

// flushedGate returns a warning if a restart of nftables.service would remove the rules that block
// VIPs on a host that does not own them.
func flushedGate(ctx context.Context, o *observed, _ *api.OwnerStatus) []Finding {
	if o.kernelSince(6, 9) || !strings.Contains(o.text("/etc/nftables.conf"), "flush ruleset") {
		return nil
	}
	if _, err := o.Run(ctx, "systemctl", "is-enabled", "nftables"); err != nil {
		return nil
	}
	return []Finding{warning("a restart of nftables.service also flushes the gate of owned VIPs",
		"vipd owner restores the gate within a second; until then, VIPs are silent. Linux 6.9 and later keep the gate",
		"replace \"flush ruleset\" in /etc/nftables.conf with commands that delete only its own tables")}
}

// etcdMajority returns a warning if etcd loses its majority when a single host dies. Other hosts
// then can't take over that host's VIPs.
func etcdMajority(ctx context.Context, o *observed, s *api.OwnerStatus) []Finding {
	members, err := o.Members(ctx)
	if err != nil || len(members) == 0 {
		return nil // if etcd is unreachable, ownerSession reports that
	}
	hosts := map[string][]netip.Addr{s.Node: {netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}}
	for _, d := range o.interfaces {
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
	if len(single) == 0 {
		return nil
	}
	return []Finding{warning("etcd has no majority without "+strings.Join(single, " or without "), "when that host dies, no other host can take over its VIPs: run three members of etcd on three machines",
		"etcdctl member list")}
}

// hostOf returns the address in a URL, or the zero address.
func hostOf(text string) netip.Addr {
	u, err := url.Parse(text)
	if err != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(u.Hostname())
	return a.Unmap()
}

// etcdElection returns a note if an etcd member on this host has an election timeout of at least a
// second. It reads the timeout from the process's arguments, environment and configuration file.
func etcdElection(_ context.Context, o *observed, _ *api.OwnerStatus) []Finding {
	words := o.Words("etcd")
	if len(words) == 0 {
		return nil
	}
	for _, word := range words {
		if file, ok := setting(word, "config-file"); ok {
			words = append(words, strings.Split(strings.ReplaceAll(o.text(file), ": ", "="), "\n")...)
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
	if timeout < 1000 {
		return nil
	}
	return []Finding{note(fmt.Sprintf("on this host, etcd elects a new leader after %s without a leader", time.Duration(timeout)*time.Millisecond),
		"if a host with etcd's leader dies, its VIPs are also silent for that long. On a LAN, use 50 ms for heartbeats and 500 ms for elections", "etcd --heartbeat-interval=50 --election-timeout=500")}
}

// setting returns the value of the etcd setting called name if word sets it, as --NAME=VALUE,
// ETCD_NAME=VALUE or NAME=VALUE.
func setting(word, name string) (value string, ok bool) {
	key, value, ok := strings.Cut(strings.TrimSpace(word), "=")
	key = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(strings.TrimLeft(key, "-"), "ETCD_")), "_", "-")
	return strings.Trim(value, ` "'`), ok && key == name
}

// gateways looks for owned VIPs whose services keep the clients' addresses. The endpoints of these
// services need a gateway address that moves together with the VIP. If the VIP's group has no
// gateway address, gateways returns a note.
func gateways(_ context.Context, _ *observed, s *api.OwnerStatus) []Finding {
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
	if len(without) == 0 {
		return nil
	}
	return []Finding{note(list(without)+": each VIP in the group has services, so endpoints have no VIP to use as their gateway",
		"if snat keeps the clients' addresses, replies must come back through the owner: add a VIP without services to the group, or set snat = \"always\"", "")}
}
