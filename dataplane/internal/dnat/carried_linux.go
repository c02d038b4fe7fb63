package dnat

import (
	"log/slog"
	"net/netip"
	"os"
)

// NewProxied returns a Carried for a mode that terminates connections in this process. If a flow's
// translated destination is not a backend, but own returns true for it, the flow belongs to a
// socket of this mode.
func NewProxied(log *slog.Logger, own func(netip.Addr) bool) *Carried {
	return proxied(log, own, func() (Conn, error) {
		if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_count"); err != nil { // a request would load conntrack
			return nil, err
		}
		return Opened()
	})
}
