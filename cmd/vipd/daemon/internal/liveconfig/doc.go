// Package liveconfig holds the daemon's own part of the current configuration. It is the last
// vipd.toml without errors, overridden by this node's configuration in the fleet (vipctl node set).
// A mode on the command line overrides both.
//
//	file source -> Follow \
//	                       > Current -> model, modeswitch
//	etcd -> Configure     /
//
// The package knows which settings can change at run time, and reports changes to settings that
// need a restart. It does not handle services.
package liveconfig
