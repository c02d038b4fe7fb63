// Package inet defines the two address families of iptables, ipsets, conntrack and the guard.
// nf_tables has more families; package nft defines them.
package inet
