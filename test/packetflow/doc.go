// Package packetflow holds every mode to the tables in flows.md: what clients get from where they are, under each
// policy. The tables are written for people, and read by two drivers:
//
//	rules_test.go          the text of the rules, as vipctl plan prints it, through vipd/test/netfilter: every way that
//	                       chance can take, with exact shares, and the replies
//	packets_linux_test.go  real packets in a network of namespaces with the same addresses
//
// Both need no more of a mode than its line in modes, and fail where the tables, the rules or the packets differ. It is
// a package of its own because vipd/test/netfilter knows nothing of vipd, and because no mode owns the tables.
package packetflow
