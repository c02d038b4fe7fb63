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
func checkOthers(ctx context.Context, v *visit) []Finding {
	var found []Finding
	chains := map[string]bool{}
	for _, b := range v.backends {
		for _, of := range b.tables {
			for name := range of {
				chains[name] = true
			}
		}
	}
	if chains["KUBE-SERVICES"] {
		found = append(found, Finding{
			Level: Note, What: "kube-proxy has rules here (KUBE-SERVICES)",
			Why: "it does for Kubernetes what vipd does; the two get along as long as no address and node port is wanted by both",
		})
	}
	if chains["DOCKER"] {
		found = append(found, Finding{
			Level: OK, What: "Docker has rules here", Why: "it may set the policy of FORWARD to DROP, where vipd accepts its own connections",
		})
	}
	found = append(found, v.firewalls(ctx, chains)...)
	found = append(found, v.translations()...)
	found = append(found, v.foreignMarks()...)
	if len(found) == 0 && v.Root {
		found = append(found, Finding{Level: OK, What: "no kube-proxy, Docker, firewalld or ufw was found"})
	}
	return found
}

// firewalls looks for programs that write whole rule sets at once.
func (v *visit) firewalls(ctx context.Context, chains map[string]bool) []Finding {
	var found []Finding
	flushes := "a restart or reload of it removes rules of others; vipd notices that within a second, and puts its own back"
	if state, err := v.Run(ctx, "systemctl", "is-active", "firewalld"); err == nil && strings.TrimSpace(state) == "active" {
		found = append(found, Finding{Level: Note, What: "firewalld is running", Why: flushes})
	}
	if chains["ufw-user-input"] || chains["ufw6-user-input"] {
		found = append(found, Finding{Level: Note, What: "ufw is enabled", Why: flushes})
	}
	return found
}

// translations finds rules of others that send traffic for our VIPs elsewhere.
func (v *visit) translations() []Finding {
	vips := map[netip.Addr]bool{}
	for _, f := range v.Frontends {
		vips[f.Addr] = true
	}
	var found []Finding
	for _, b := range v.backends {
		nat := b.tables["nat"]
		for _, name := range slices.Sorted(maps.Keys(nat)) {
			if strings.HasPrefix(name, "VIPD-") {
				continue
			}
			for _, rule := range nat[name].rules {
				if vip, ok := destination(rule); ok && vips[vip] && translates(rule) {
					found = append(found, Finding{
						Level: Warning, What: fmt.Sprintf("a rule of somebody else translates traffic for %s (%s, chain %s): %s", vip, b.program, name, rule),
						Why:  "who comes first gets the connection",
						Mend: fmt.Sprintf("%s -t nat -D %s %s", b.program, name, rule),
					})
				}
			}
		}
	}
	return found
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
func checkFirewall(ctx context.Context, v *visit) []Finding {
	if !v.Root {
		return []Finding{{Level: Note, What: "firewalls were not looked at: that takes root", Mend: "sudo vipctl doctor"}}
	}
	var found []Finding
	for _, b := range v.backends {
		found = append(found, v.policies(b, b.kind == v.ours(ctx, b.family))...)
	}
	return append(found, v.foreignChains(ctx)...)
}
