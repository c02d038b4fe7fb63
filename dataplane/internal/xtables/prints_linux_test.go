package xtables

import (
	"maps"
	"testing"
)

// TestChainHashes changes chains in several ways. A chain's hash must change if and only if the
// chain's content changes.
func TestChainHashes(t *testing.T) {
	empty(t)
	everyTool(t, func(t *testing.T, tool *Tool) {
		chains := []string{"VIPD-A", "VIPD-B", "VIPD-EMPTY", "VIPD-SERVICES", "OUTPUT", "VIPD-ABSENT"}
		prints := func() map[string]ChainHash {
			p, err := tool.ChainHashes(t.Context(), "nat", "VIPD-", chains)
			must(t, err)
			return p
		}
		for _, c := range []struct{ damage, chain string }{
			{"", ""},
			{"-A FOREIGN -j RETURN\n", ""},
			{":VIP-C - [0:0]\n-A VIP-C -j FOREIGN\n-A OUTPUT -j VIP-C\n", ""},
			{":VIPD-A - [0:0]\n-A VIPD-A -p udp -j RETURN\n", ""}, // restores the original content
			{"-Z VIPD-A\n", ""},
			{"-R VIPD-A 1 -p tcp -j RETURN\n", "VIPD-A"},
			{"-R VIPD-A 1 -p udp -j ACCEPT\n", "VIPD-A"},
			{"-R VIPD-A 1 -p udp\n", "VIPD-A"},
			{"-R VIPD-A 1 -p udp -m comment --comment x -j RETURN\n", "VIPD-A"},
			{"-R VIPD-SERVICES 1 -p udp -m udp --dport 1003 -g VIPD-A\n", "VIPD-SERVICES"},
			{"-R VIPD-SERVICES 1 -p udp -m udp --dport 1001 -j VIPD-A\n", "VIPD-SERVICES"},
			{"-R VIPD-SERVICES 1 -p udp -m udp --dport 1001 -g VIPD-EMPTY\n", "VIPD-SERVICES"},
			{"-R VIPD-B 1 -p udp -j RETURN\n-R VIPD-B 2 -p tcp -j RETURN\n", "VIPD-B"}, // the same rules in another order
			{"-A VIPD-EMPTY -j RETURN\n", "VIPD-EMPTY"},
			{"-R OUTPUT 1 -p tcp -j VIPD-SERVICES\n", "OUTPUT"},
			{"-D OUTPUT 1\n", "OUTPUT"},
		} {
			small(t, tool)
			before := prints()
			must(t, tool.Restore(t.Context(), "*nat\n"+c.damage+"COMMIT\n"))
			after := prints()
			for _, name := range chains {
				if (before[name] != after[name]) != (name == c.chain) {
					t.Errorf("after %q: hash of %s = %v, before = %v; want a change only for the damaged chain", c.damage, name, after[name], before[name])
				}
			}
			if _, ok := after["VIPD-ABSENT"]; ok || len(after) != len(chains)-1 || !maps.Equal(after, prints()) {
				t.Errorf("after %q: hashes = %v, read again = %v; want the same hashes", c.damage, after, prints())
			}
			must(t, tool.Restore(t.Context(), "*nat\n-F\n-X\nCOMMIT\n"))
		}
	})
}
