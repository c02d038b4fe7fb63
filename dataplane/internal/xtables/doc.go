// Package xtables runs iptables and ip6tables. No other package starts these programs or parses
// their output.
//
// A [Tool] is a variant (nft or legacy) for one family (IPv4 or IPv6). [Find] returns a Tool after
// a trial chain has proved that the Tool works on this host:
//
//	tool, err := xtables.Find(ctx, inet.IPv4, xtables.Auto, log)
//	err = tool.Restore(ctx, "*nat\n:VIPD-SERVICES - [0:0]\n-A VIPD-SERVICES -d 10.96.0.10 -p tcp -j REDIRECT --to-ports 4711\nCOMMIT\n")
//	rules, err := tool.Rules(ctx, "nat", "PREROUTING")
//	lines := xtables.Join(rules, "PREROUTING", "-j VIPD-SERVICES", "VIPD-SERVICES") // for one more Restore
//
// Restore writes rules. The rules up to each COMMIT are a transaction. Write writes whole chains.
// It decides how many chains to put into a transaction, and finds out which group of chains was
// refused. Jumps from the kernel's own chains are separate lines, because other programs also write
// to those chains. Chains that an input does not declare are not changed.
//
// Tables of 100,000 rules are checked without the iptables programs, which would read all rules.
// Stamp detects within 40 us whether rules have changed. Compare checks each chain's number of
// rules, ChainHashes checks the chains' content, and FullCounts reads their counters. Saved reads
// everything, which takes 0.2 to 0.7 s.
//
// The package does not depend on services. It keeps no state, and reads the kernel instead.
package xtables
