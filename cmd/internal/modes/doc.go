// Package modes lists the modes of this version, for vipd, vipctl, and their tests. A new dataplane
// needs one line in All, and a function here that creates it from the configuration.
//
// The daemon uses Mode.New, which tries whether a mode works here. Except for Cleanup, the other
// functions of a Mode don't touch the host. The verbs check and plan use them, without root and
// without a daemon.
//
// The package does not choose a mode: cmd/vipd/daemon does, in the order of All.
package modes
