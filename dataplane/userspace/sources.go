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
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); !o.known[a] && now.Sub(o.read) > time.Second {
		o.read = now
		o.known = readOwnAddresses()
	}
	return o.known[a]
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
