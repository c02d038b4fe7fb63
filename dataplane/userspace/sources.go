package userspace

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// ownAddresses holds the node's own addresses. It reads them again for an unknown address, at most
// once a second.
type ownAddresses struct {
	mu    sync.Mutex
	known map[netip.Addr]bool
	read  time.Time
}

func (o *ownAddresses) has(a netip.Addr) bool {
	own, sure := o.peek(a)
	if sure {
		return own
	}
	known, now := readOwnAddresses(), time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known, o.read = known, now
	return known[a]
}

// peek is like has, but reads nothing: sure is false if has would.
func (o *ownAddresses) peek(a netip.Addr) (own, sure bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	own = o.known[a]
	return own, own || time.Since(o.read) <= time.Second
}

func readOwnAddresses() map[netip.Addr]bool {
	known := map[netip.Addr]bool{}
	networks, err := net.InterfaceAddrs()
	if err != nil {
		return known // no source is local then, which is the strict choice
	}
	for _, n := range networks {
		if p, err := netip.ParsePrefix(n.String()); err == nil {
			known[p.Addr().Unmap()] = true
		}
	}
	return known
}
