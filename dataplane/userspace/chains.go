package userspace

import (
	"errors"
	"net/netip"
	"sync"

	"vipd/balancer"
)

// errLoop is the reason why a backend gets no connections that would return to their frontend.
var errLoop = errors.New("its address is that of a service that leads back to this one: connections would loop")

// chains holds the wanted frontends by key. Because a backend may itself be a frontend, connections
// to backends are checked for loops.
type chains struct {
	mu        sync.RWMutex // guards frontends; none is locked under it
	frontends map[balancer.Key]*frontend
}

func (c *chains) add(f *frontend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frontends[f.key] = f
}

func (c *chains) remove(f *frontend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.frontends, f.key)
}

// at returns the wanted frontend of a key, or nil.
func (c *chains) at(k balancer.Key) *frontend {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.frontends[k]
}

// leadBack reports whether a connection from the frontend at own to a backend may return to that
// frontend. The backend is rarely a frontend, so one lookup usually suffices.
func (c *chains) leadBack(own balancer.Key, to netip.AddrPort) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	first := c.frontends[keyAt(to, own.Proto)]
	if first == nil {
		return false
	}
	seen, ahead := map[balancer.Key]bool{}, []*frontend{first}
	for len(ahead) > 0 {
		f := ahead[len(ahead)-1]
		ahead = ahead[:len(ahead)-1]
		if f.key == own {
			return true
		}
		if seen[f.key] {
			continue
		}
		seen[f.key] = true
		for _, b := range f.conf.Load().Backends {
			if next := c.frontends[keyAt(b.Addr, own.Proto)]; next != nil && b.State != balancer.Removed {
				ahead = append(ahead, next)
			}
		}
	}
	return false
}

func keyAt(at netip.AddrPort, proto balancer.Protocol) balancer.Key {
	return balancer.Key{Addr: at.Addr(), Port: balancer.PortRange(at.Port()), Proto: proto}
}
