// Package cleanup takes away what "vipd owner" has left on a host: its gate, which keeps a host that owns no VIP silent about all of
// them, and VIPs behind it. It takes nothing away while one runs, and can stop that.
package cleanup
