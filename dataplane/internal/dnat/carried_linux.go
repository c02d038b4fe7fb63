package dnat

import (
	"log/slog"
	"net/netip"
	"os"
)

// NewProxied returns a Carried for a mode that terminates connections in this process. A flow whose
// translated destination is not a backend belongs to a socket of this mode if own returns true for
// that destination.
func NewProxied(log *slog.Logger, own func(netip.Addr) bool) *Carried {
	return proxied(log, own, func() (Conn, error) {
		if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_count"); err != nil { // a request would load conntrack
			return nil, err
		}
		return Opened()
	})
}
