package userspace

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// ownAddresses caches the node's own addresses. If an address is unknown, has reads them again, at
// most once a second.
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

// peek is like has, but does not read the addresses again. If has would read them, sure is false.
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
		return known // addresses that are not known stay foreign, which is the stricter choice
	}
	for _, n := range networks {
		if p, err := netip.ParsePrefix(n.String()); err == nil {
			known[p.Addr().Unmap()] = true
		}
	}
	return known
}
