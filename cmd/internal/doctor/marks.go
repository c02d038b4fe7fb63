package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

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
