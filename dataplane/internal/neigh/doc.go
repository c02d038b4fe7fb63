// Package neigh communicates with a link's neighbors through ARP and NDP. It announces addresses,
// asks who has them, and receives other hosts' claims.
package neigh
