package doctor

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// savedRules maps each firewall rule file that is loaded at boot to a command that saves the host's
// rules without vipd's rules. netfilter-persistent, iptables-services and nftables.service load
// these files.
func savedRules() map[string]string {
	return map[string]string{
		"/etc/iptables/rules.v4": "iptables-save | grep -v VIPD- > /etc/iptables/rules.v4", "/etc/iptables/rules.v6": "ip6tables-save | grep -v VIPD- > /etc/iptables/rules.v6",
		"/etc/sysconfig/iptables": "iptables-save | grep -v VIPD- > /etc/sysconfig/iptables", "/etc/sysconfig/ip6tables": "ip6tables-save | grep -v VIPD- > /etc/sysconfig/ip6tables",
		"/etc/nftables.conf": "nft list tables  # save each table except vipd's: nft list table FAMILY TABLE", "/etc/sysconfig/nftables.conf": "nft list tables  # save each table except vipd's: nft list table FAMILY TABLE",
	}
}

// checkSaved looks for vipd's rules in the firewall rule files that are loaded at boot.
func checkSaved(_ context.Context, o *observed) (found []Finding) {
	saved := savedRules()
	for _, file := range slices.Sorted(maps.Keys(saved)) {
		text := o.text(file)
		for _, object := range []string{"VIPD-", "vipd-sticky", "table ip vipd", "table ip6 vipd"} {
			if strings.Contains(text, object) {
				found = append(found, warning("rules that are loaded at boot contain vipd's: "+object+" in "+file,
					"until vipd starts, the saved rules lead to endpoints that might no longer exist; if a set is missing, iptables-restore loads no rules", saved[file]))
				break
			}
		}
	}
	return found
}
