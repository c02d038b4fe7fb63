// Package failover reports to "vipd owner" the VIPs that have one owner among the hosts, and
// whether this vipd could serve them. It receives the owner's state. The rest of the daemon treats
// such VIPs as addresses that appear and disappear.
package failover
