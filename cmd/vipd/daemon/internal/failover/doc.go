// Package failover tells "vipd owner" which VIPs have one owner among the hosts, and which of them this vipd could serve, and hears
// how the owner is. To the rest of the daemon the addresses of such VIPs come and go.
package failover
