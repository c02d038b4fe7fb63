package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// checkOthers looks for programs that have their own ideas about the same packets.
func checkOthers(ctx context.Context, v *visit) {
	before := len(v.found)
	chains := map[string]bool{}
	for _, b := range v.backends {
		for _, of := range b.tables {
			for name := range of {
				chains[name] = true
			}
		}
	}
	if chains["KUBE-SERVICES"] {
		v.add(note("kube-proxy has rules here (KUBE-SERVICES)",
			"it does for Kubernetes what vipd does; the two get along as long as no address and node port is wanted by both", ""))
	}
	if chains["DOCKER"] {
		v.add(Finding{
			Level: OK, What: "Docker has rules here", Why: "it may set the policy of FORWARD to DROP, where vipd accepts its own connections",
		})
	}
	v.firewalls(ctx, chains)
	v.translations()
	v.foreignMarks()
	if len(v.found) == before && v.Root {
		v.add(fine("no kube-proxy, Docker, firewalld or ufw was found"))
	}
}

// firewalls looks for programs that write whole rule sets at once.
func (v *visit) firewalls(ctx context.Context, chains map[string]bool) {
	flushes := "a restart or reload of it removes rules of others; vipd notices that within a second, and puts its own back"
	if state, err := v.Run(ctx, "systemctl", "is-active", "firewalld"); err == nil && strings.TrimSpace(state) == "active" {
		v.add(note("firewalld is running", flushes, ""))
	}
	if chains["ufw-user-input"] || chains["ufw6-user-input"] {
		v.add(note("ufw is enabled", flushes, ""))
	}
}

// translations finds rules of others that send traffic for our VIPs elsewhere.
func (v *visit) translations() {
	vips := map[netip.Addr]bool{}
	for _, f := range v.Frontends {
		vips[f.Addr] = true
	}
	for _, b := range v.backends {
		nat := b.tables["nat"]
		for _, name := range slices.Sorted(maps.Keys(nat)) {
			if strings.HasPrefix(name, "VIPD-") {
				continue
			}
			for _, rule := range nat[name].rules {
				if vip, ok := destination(rule); ok && vips[vip] && translates(rule) {
					v.add(warning(fmt.Sprintf("a rule of another program translates traffic for %s (%s, chain %s): %s", vip, b.program, name, rule),
						"who comes first gets the connection", fmt.Sprintf("%s -t nat -D %s %s", b.program, name, rule)))
				}
			}
		}
	}
}

// destination returns the one address that a rule is for.
func destination(rule string) (netip.Addr, bool) {
	words := strings.Fields(rule)
	at := slices.Index(words, "-d")
	if at < 0 || at+1 == len(words) || at > 0 && words[at-1] == "!" {
		return netip.Addr{}, false
	}
	p, err := netip.ParsePrefix(words[at+1])
	if err != nil || !p.IsSingleIP() {
		return netip.Addr{}, false
	}
	return p.Addr(), true
}

// translates reports whether a rule ends in a new destination, or in a chain of kube-proxy that does.
func translates(rule string) bool {
	targets := []string{"-j DNAT", "-j REDIRECT", "-j KUBE-SVC-", "-j KUBE-EXT-"}
	return slices.ContainsFunc(targets, func(target string) bool { return strings.Contains(rule, target) })
}

// checkFirewall looks for what drops packets that vipd wants to pass: rules before vipd's and policies
// of iptables, and nft tables of others.
func checkFirewall(ctx context.Context, v *visit) {
	if !v.Root {
		v.add(note("firewalls were not looked at: that takes root", "", "sudo vipctl doctor"))
		return
	}
	for _, b := range v.backends {
		v.policies(b, b.kind == v.ours(ctx, b.family))
		v.outward(b)
	}
	v.foreignChains(ctx)
}

// foreignMarks finds rules of others that change the bits of marks that are vipd's: what they overwrite is forgotten.
func (v *visit) foreignMarks() {
	bit := v.Config.IPTables.MasqueradeBit
	ours := uint32(0)
	for i := range 3 { // of packets, and of connections
		ours |= 1 << ((bit + i) % 32)
	}
	for _, b := range v.backends {
		for _, table := range slices.Sorted(maps.Keys(b.tables)) {
			for _, name := range slices.Sorted(maps.Keys(b.tables[table])) {
				if strings.HasPrefix(name, "VIPD-") || strings.HasPrefix(name, "KUBE-") { // kube-proxy's bit means the same
					continue
				}
				for _, rule := range b.tables[table][name].rules {
					if marked(rule)&ours == 0 {
						continue
					}
					v.add(warning(fmt.Sprintf("a rule of another program changes marks that vipd uses (%s, table %s, chain %s): %s", b.program, table, name, rule),
						fmt.Sprintf("it covers the bits %#x, by which connections to VIPs are accepted and get the node's address: give the rule "+
							"a mask without them, or set iptables.masquerade_bit to another", ours),
						fmt.Sprintf("%s -t %s -S %s", b.program, table, name)))
				}
			}
		}
	}
}

// marked returns the bits that a rule may change in the mark of a packet or connection.
func marked(rule string) uint32 {
	words := strings.Fields(rule)
	at := slices.Index(words, "-j")
	if at < 0 || at+1 == len(words) || words[at+1] != "MARK" && words[at+1] != "CONNMARK" {
		return 0
	}
	var bits uint32
	for _, word := range words[at+2:] { // as in --set-xmark 0x1/0xff, and --restore-mark --nfmask 0xff --ctmask 0xff
		for _, number := range strings.Split(word, "/") {
			if n, err := strconv.ParseUint(number, 0, 32); err == nil {
				bits |= uint32(n)
			}
		}
	}
	return bits
}
