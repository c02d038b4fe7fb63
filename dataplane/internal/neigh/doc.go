// Package neigh communicates with the neighbors on a link by ARP and NDP. It announces addresses,
// asks for their owners, and receives claims of other hosts.
package neigh
