// Package failover reports to "vipd owner" which VIPs have one owner among the hosts and which of
// them this vipd could serve, and returns the owner's state. To the rest of the daemon, such VIPs
// are addresses that appear and disappear.
package failover
