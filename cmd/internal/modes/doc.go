// Package modes lists the modes of this version, for vipd, vipctl, and their tests. A new dataplane
// needs one line in All, and a function here that creates it from the configuration.
//
// The daemon uses Mode.New, which proves by a trial that a mode works here. Except for Cleanup, the
// other functions of a Mode don't touch the host: they serve check and plan, which need neither
// root nor a daemon.
//
// The package does not choose a mode: cmd/vipd/daemon does, in the order of All.
package modes
