// Package cleanup stops a "vipd owner", and removes from the host what it left behind: the VIPs,
// and the gate (the rules that silence all VIPs while they are in doubt). It removes nothing while
// an owner is running.
package cleanup
