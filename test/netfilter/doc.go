// Package netfilter says what the kernel would do with a packet, from the text of the rules alone:
//
//	rules, err := netfilter.Parse(rules4, rules6, sets)   // iptables-restore and ipset-restore input
//	for _, o := range rules.Outcomes(packet, host) {
//		fmt.Println(o.Probability, o.Verdict)
//	}
//
// A packet that arrives passes PREROUTING (mangle, nat), is routed, and passes INPUT (mangle, filter, nat), or FORWARD
// (mangle, filter) and POSTROUTING (mangle, nat). One that the host sends passes OUTPUT (mangle, nat, filter) and
// POSTROUTING, and, when it is for the host itself, PREROUTING (mangle) and INPUT (mangle, filter) after that. Only the
// first packet of a connection asks nat's chains, once for its destination and once for its source; others are rewritten
// as it was, see Verdict.Next and Verdict.Reply.
//
// Nothing is ignored: what the kernel refuses (a missing chain, a loop, a target in the wrong place, ports without a
// protocol) and what this package does not know are errors of Parse. A test with real packets, over rule sets made up
// at random, holds it to what the kernel does.
//
// It knows no policy routing, no fragments, no other tables, and nothing of conntrack but what the packet says.
package netfilter
