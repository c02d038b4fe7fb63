// Package neigh communicates with the neighbors on a link by ARP and NDP: it announces addresses,
// asks for their owners, and reads other hosts' claims.
package neigh
