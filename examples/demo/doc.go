// Demo shows vipd at work on this machine. It runs the real programs and needs no root:
//
//	demo run     runs vipd with examples/quickstart.toml, and the three servers behind its VIPs, until Ctrl-C
//	demo tour    shows traffic while servers die, drain and return, and while the configuration changes or has mistakes;
//	             it checks each claim, and exits with code 1 if one does not hold
//
// The programs vipd, vipctl and echo must be in the same directory as demo, and the directory
// examples must be next to that directory.
package main
