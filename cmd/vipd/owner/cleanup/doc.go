// Package cleanup ends a "vipd owner" and removes what it has left on a host: its gate, which
// silences all VIPs, and VIPs behind it. It removes nothing while an owner runs.
package cleanup
