package userspace

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"vipd/balancer"
)

// errLoop means that connections to a backend would return to their frontend.
var errLoop = errors.New("its address belongs to a service that leads back to this service: connections would loop")

// chains holds the wanted frontends by key. A backend may itself be a frontend, so connections to
// backends are checked for loops.
type chains struct {
	mu        sync.RWMutex // guards the fields below; no frontend is locked while it is held
	frontends map[balancer.Key]*frontend
	// ranges holds, for each address, the frontends that have a port range, the narrowest range
	// first.
	ranges map[netip.Addr][]*frontend
}

func (c *chains) add(f *frontend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frontends[f.key] = f
	if on := c.ranges[f.key.Addr]; f.key.Port.IsRange() && !slices.Contains(on, f) {
		byWidth := func(a, b *frontend) int { return cmp.Compare(a.key.Port.Len(), b.key.Port.Len()) }
		c.ranges[f.key.Addr] = slices.SortedFunc(slices.Values(append(on, f)), byWidth)
	}
}

func (c *chains) remove(f *frontend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.frontends, f.key)
	if !f.key.Port.IsRange() {
		return
	}
	on := slices.DeleteFunc(slices.Clone(c.ranges[f.key.Addr]), func(g *frontend) bool { return g == f })
	if c.ranges[f.key.Addr] = on; len(on) == 0 {
		delete(c.ranges, f.key.Addr)
	}
}

// at returns the wanted frontend that receives connections to the address and port in k, or nil.
func (c *chains) at(k balancer.Key) *frontend {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.atLocked(k)
}

func (c *chains) atLocked(k balancer.Key) *frontend {
	if f := c.frontends[k]; f != nil {
		return f
	}
	for _, f := range c.ranges[k.Addr] {
		if f.key.Proto == k.Proto && f.key.Port.Contains(k.Port.First()) {
			return f
		}
	}
	return nil
}

// leadBack reports whether a connection from the frontend own to the backend address to may return
// to own. Most backends are not frontends, so a single lookup usually suffices.
func (c *chains) leadBack(own balancer.Key, to netip.AddrPort) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.atLocked(keyAt(to, own.Proto)) == nil {
		return false
	}
	seen, ahead := map[balancer.Key]bool{}, []netip.AddrPort{to}
	for len(ahead) > 0 {
		at := ahead[len(ahead)-1]
		ahead = ahead[:len(ahead)-1]
		f := c.atLocked(keyAt(at, own.Proto))
		if f == nil || seen[f.key] {
			continue
		}
		if f.key == own {
			return true
		}
		seen[f.key] = true
		for _, b := range f.conf.Load().Backends {
			if b.State != balancer.Removed {
				ahead = append(ahead, f.target(b.Addr, at.Port()))
			}
		}
	}
	return false
}

func keyAt(at netip.AddrPort, proto balancer.Protocol) balancer.Key {
	return balancer.Key{Addr: at.Addr(), Port: balancer.PortRange(at.Port()), Proto: proto}
}
