// Package failover reports to "vipd owner" the VIPs that have one owner among the hosts and whether
// this vipd could serve them, and returns the owner's state. To the rest of the daemon, such VIPs
// are addresses that appear and disappear.
package failover
