package userspace

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ownAddresses caches the node's own addresses for a second, because another machine may get an
// address that the node has lost.
type ownAddresses struct {
	reading  sync.Mutex // locked while the addresses are read, so has reads them at most once a second
	mu       sync.Mutex
	known    map[netip.Addr]bool
	networks []netip.Prefix
	read     time.Time
}

func (o *ownAddresses) has(a netip.Addr) bool {
	own, sure := o.peek(a)
	if sure {
		return own
	}
	o.reading.Lock()
	defer o.reading.Unlock()
	if own, sure = o.peek(a); sure {
		return own
	}
	known, networks := readOwnAddresses()
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known, o.networks, o.read = known, networks, now
	return known[a]
}

// joins reports whether a or b is an address of the node, or both are in a network of the node. It
// does not read the addresses again.
func (o *ownAddresses) joins(a, b netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[a] || o.known[b] || slices.ContainsFunc(o.networks, func(n netip.Prefix) bool { return n.Contains(a) && n.Contains(b) })
}

// peek is like has, but does not read the addresses again. If has would read them, sure is false.
func (o *ownAddresses) peek(a netip.Addr) (own, sure bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[a], time.Since(o.read) <= time.Second
}

func readOwnAddresses() (known map[netip.Addr]bool, networks []netip.Prefix) {
	known = map[netip.Addr]bool{}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return known, nil // unknown addresses stay foreign, which is the stricter choice
	}
	for _, n := range all {
		p, err := netip.ParsePrefix(n.String())
		if err != nil {
			continue
		}
		known[p.Addr().Unmap()] = true
		if !p.IsSingleIP() {
			networks = append(networks, p)
		}
	}
	return known, networks
}
