// Demo shows vipd at work on this machine, through the real programs and without root:
//
//	demo run     three servers behind the VIPs of examples/quickstart.toml, until Ctrl-C
//	demo tour    what happens to traffic when servers die, drain and come back and when the configuration changes or
//	             breaks; every claim is checked, and the exit code is 1 if one does not hold
//
// It finds vipd, vipctl and echo next to itself, and the examples in the folder above.
package main
