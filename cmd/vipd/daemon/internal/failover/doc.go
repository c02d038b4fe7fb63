// Package failover reports to "vipd owner" the VIPs that have one owner among the hosts, and
// whether this vipd could serve them. In return, it receives the state of "vipd owner". The rest of
// the daemon treats such VIPs as addresses that appear and disappear.
package failover
