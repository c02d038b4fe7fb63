// Package cleanup ends a "vipd owner" and removes its remains from a host: its gate, which silences
// all VIPs, and the VIPs themselves. It removes nothing while an owner runs.
package cleanup
