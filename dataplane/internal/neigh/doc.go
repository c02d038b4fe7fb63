// Package neigh talks to the neighbors on a link by ARP and NDP: it announces addresses, asks for
// their owners, and reads the claims of others.
package neigh
