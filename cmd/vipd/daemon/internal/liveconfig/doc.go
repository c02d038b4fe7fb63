// Package liveconfig holds the daemon's own part of the configuration as it is now: vipd.toml as it was last read without errors, and
// over it what the fleet says of this node (vipctl node set). The mode of the command line wins over both.
//
//	file source -> Follow \
//	                       > Current -> model, modeswitch
//	etcd -> Configure     /
//
// It knows what can change while vipd runs, and tells of the rest that it takes a restart. It does not know of services.
package liveconfig
