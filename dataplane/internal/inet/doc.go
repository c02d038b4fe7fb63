// Package inet has the two families of addresses, as iptables, ipsets, conntrack and the guard tell them apart. Those of
// nf_tables, which has more, are package nft's.
package inet
