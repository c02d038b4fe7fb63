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

// checkPrograms looks for programs that also write rules for the packets of services.
func checkPrograms(ctx context.Context, o *observed) (found []Finding) {
	chains := map[string]bool{}
	for _, b := range o.backends {
		for _, of := range b.tables {
			for name := range of {
				chains[name] = true
			}
		}
	}
	if chains["KUBE-SERVICES"] {
		found = append(found, note("kube-proxy has rules here (KUBE-SERVICES)",
			"it serves Kubernetes as vipd serves its services; both work as long as they share no address and no node port", ""))
	}
	if chains["DOCKER"] {
		found = append(found, Finding{
			Level: OK, What: "Docker has rules here", Why: "it may set the policy of FORWARD to DROP, where vipd accepts its own connections",
		})
	}
	found = append(found, firewalls(ctx, o, chains)...)
	if len(found) == 0 && o.Root {
		found = append(found, fine("no kube-proxy, Docker, firewalld or ufw was found"))
	}
	return found
}

// firewalls looks for programs that replace whole rule sets.
func firewalls(ctx context.Context, o *observed, chains map[string]bool) (found []Finding) {
	flushes := "its restart or reload removes rules of other programs; vipd restores its own within a second"
	if state, err := o.Run(ctx, "systemctl", "is-active", "firewalld"); err == nil && strings.TrimSpace(state) == "active" {
		found = append(found, note("firewalld is running", flushes, ""))
	}
	if chains["ufw-user-input"] || chains["ufw6-user-input"] {
		found = append(found, note("ufw is enabled", flushes, ""))
	}
	return found
}

// checkTranslations looks for rules of others that send traffic for VIPs elsewhere.
func checkTranslations(_ context.Context, o *observed) (found []Finding) {
	vips := map[netip.Addr]bool{}
	for _, f := range o.Frontends {
		vips[f.Addr] = true
	}
	for _, b := range o.backends {
		nat := b.tables["nat"]
		for _, name := range slices.Sorted(maps.Keys(nat)) {
			if strings.HasPrefix(name, "VIPD-") {
				continue
			}
			for _, rule := range nat[name].rules {
				if vip, ok := destination(rule); ok && vips[vip] && translates(rule) {
					found = append(found, warning(fmt.Sprintf("a rule of another program translates traffic for %s (%s, chain %s): %s", vip, b.program, name, rule),
						"the first rule gets the connection", fmt.Sprintf("%s -t nat -D %s %s", b.program, name, rule)))
				}
			}
		}
	}
	return found
}

// destination returns the address that a rule is for, if it is a single address.
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

// checkMarks looks for rules of others that change the bits of marks that vipd uses.
func checkMarks(_ context.Context, o *observed) (found []Finding) {
	bit := o.Config.IPTables.MasqueradeBit
	ours := uint32(0)
	for i := range 3 { // of packets, and of connections
		ours |= 1 << ((bit + i) % 32)
	}
	for _, b := range o.backends {
		for _, table := range slices.Sorted(maps.Keys(b.tables)) {
			for _, name := range slices.Sorted(maps.Keys(b.tables[table])) {
				if strings.HasPrefix(name, "VIPD-") || strings.HasPrefix(name, "KUBE-") { // kube-proxy's bit means the same
					continue
				}
				for _, rule := range b.tables[table][name].rules {
					if marked(rule)&ours == 0 {
						continue
					}
					found = append(found, warning(fmt.Sprintf("a rule of another program changes marks that vipd uses (%s, table %s, chain %s): %s", b.program, table, name, rule),
						fmt.Sprintf("vipd accepts connections to VIPs by the bits %#x, and gives them the node's address by them: give the rule "+
							"a mask without them, or set iptables.masquerade_bit to another", ours),
						fmt.Sprintf("%s -t %s -S %s", b.program, table, name)))
				}
			}
		}
	}
	return found
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
