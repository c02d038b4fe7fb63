// Package xtables drives iptables and ip6tables. No other package starts their programs or parses
// their output.
//
// A [Tool] is a variant (nft or legacy) for one family (IPv4 or IPv6). [Find] returns it, and
// proves with a trial chain that it works here:
//
//	tool, err := xtables.Find(ctx, inet.IPv4, xtables.Auto, log)
//	err = tool.Restore(ctx, "*nat\n:VIPD-SERVICES - [0:0]\n-A VIPD-SERVICES -d 10.96.0.10 -p tcp -j REDIRECT --to-ports 4711\nCOMMIT\n")
//	rules, err := tool.Rules(ctx, "nat", "PREROUTING")
//	lines := xtables.Join(rules, "PREROUTING", "-j VIPD-SERVICES", "VIPD-SERVICES") // for one more Restore
//
// Restore writes rules, many in the transaction of each COMMIT. Write writes whole chains. It
// determines how much fits into a transaction, and finds the refused group of chains. Jumps from
// the kernel's own chains are separate lines, because other programs also write to those chains.
// Chains that an input does not declare are not changed.
//
// Tables of 100,000 rules are checked without programs, which would read all of them: Stamp returns
// within 40 us whether rules have changed, Compare whether the chains have the expected numbers of
// rules, ChainHashes whether their content is unchanged, and FullCounts what rules have matched.
// Saved reads everything, which needs 0.2 to 0.7 s.
//
// The package knows nothing about services, and keeps no state: it reads the kernel.
package xtables
