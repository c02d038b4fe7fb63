// Package cleanup ends a "vipd owner" and removes its remains on a host: its gate, which silences
// all VIPs, and VIPs behind it. It removes nothing while an owner runs.
package cleanup
