// Package neigh speaks to the neighbours on a link by ARP and NDP: it announces addresses, asks who has one, and reads what
// others say of them.
package neigh
