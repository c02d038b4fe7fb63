// Package modes lists the modes of this version: the one place that vipd and vipctl, their tests and scenarios have them
// from. A new dataplane is one line in All, and a function here that says how it is made from the configuration.
//
// The daemon takes Mode.New, which proves by a trial that a mode works here. The other functions of a Mode touch nothing
// on the host but for Cleanup: they serve check and plan, which need neither root nor a daemon.
//
// The package chooses no mode: cmd/vipd/daemon does, in the order of All.
package modes
