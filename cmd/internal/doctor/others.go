package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
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
	for _, target := range []string{"-j DNAT", "-j REDIRECT", "-j KUBE-SVC-", "-j KUBE-EXT-"} {
		if strings.Contains(rule, target) {
			return true
		}
	}
	return false
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
	}
	v.foreignChains(ctx)
}
