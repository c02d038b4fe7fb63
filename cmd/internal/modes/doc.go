// Package modes lists the modes that this version has, for vipd, vipctl and their tests. A new mode
// needs an entry in All, and a function here that describes it and creates its dataplane from the
// configuration.
//
// Mode.New checks whether the mode works on this host, and creates its dataplane. Mode.Cleanup
// removes the mode's objects. The other functions of a Mode don't access the host, so vipctl check
// and plan can use them without root and without a daemon.
//
// The package does not choose a mode. cmd/vipd/daemon does, in the order of All.
package modes
