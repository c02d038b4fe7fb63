// Package failover reports the VIPs that have one owner among the hosts to "vipd owner", and
// whether this vipd could serve them. It returns the owner's state. The rest of the daemon treats
// such VIPs as addresses that appear and disappear.
package failover
