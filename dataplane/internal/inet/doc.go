// Package inet has the two address families of iptables, ipsets, conntrack and the guard. nf_tables
// has more families, which are in package nft.
package inet
