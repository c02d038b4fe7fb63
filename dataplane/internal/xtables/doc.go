// Package xtables drives iptables and ip6tables: the one place that starts their programs and reads what they say.
//
// A Tool is one family (IPv4 or IPv6) with one backend (nft or legacy), found by Find, which proves by a trial chain
// that it works here:
//
//	tool, err := xtables.Find(ctx, xtables.IPv4, xtables.Auto, log)
//	err = tool.Restore(ctx, "*nat\n:VIPD-SERVICES - [0:0]\n-A VIPD-SERVICES -d 10.96.0.10 -p tcp -j REDIRECT --to-ports 4711\nCOMMIT\n")
//	err = tool.EnsureJump(ctx, "nat", "PREROUTING", true, "-j", "VIPD-SERVICES")
//
// Rules go in by Restore, many in one transaction for each COMMIT; jumps from the kernel's own chains are single calls,
// because others write to those chains too. Chains that an input does not declare are not touched.
//
// The package knows nothing of services, and keeps no state: what is there is asked of the kernel.
package xtables
