// Package xtables drives iptables and ip6tables: the one place that starts their programs and reads what they say.
//
// A Tool is one family (IPv4 or IPv6) with one variant (nft or legacy), found by Find, which proves by a trial chain
// that it works here:
//
//	tool, err := xtables.Find(ctx, inet.IPv4, xtables.Auto, log)
//	err = tool.Restore(ctx, "*nat\n:VIPD-SERVICES - [0:0]\n-A VIPD-SERVICES -d 10.96.0.10 -p tcp -j REDIRECT --to-ports 4711\nCOMMIT\n")
//	rules, err := tool.Rules(ctx, "nat", "PREROUTING")
//	lines := xtables.Join(rules, "PREROUTING", "-j VIPD-SERVICES", "VIPD-SERVICES") // for one more Restore
//
// Rules go in by Restore, many in one transaction for each COMMIT, and whole chains by Write, which finds out how much
// goes into one transaction best, and which group of chains was refused. Jumps from the kernel's own chains are lines of
// their own, because others write to those chains too. Chains that an input does not declare are not touched.
//
// Tables of 100,000 rules are looked at without programs, which would read all of them: Stamp says within 40 us whether
// rules were changed, Compare whether the chains have as many rules as they should, Prints whether they are the same
// as before, FullCounts what rules matched.
// Saved reads everything back, and takes 0.2 to 0.7 s for that.
//
// The package knows nothing of services, and keeps no state: what is there is asked of the kernel.
package xtables
