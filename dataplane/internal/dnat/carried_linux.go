package dnat

import (
	"log/slog"
	"net/netip"
	"os"
)

// NewProxied returns a Carried for a mode that terminates connections in this process. If a flow
// leads to no backend but to an address for which own returns true, it belongs to a socket of that
// mode.
func NewProxied(log *slog.Logger, own func(netip.Addr) bool) *Carried {
	return proxied(log, own, func() (Conn, error) {
		if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_count"); err != nil { // a request would load conntrack
			return nil, err
		}
		return Opened()
	})
}
