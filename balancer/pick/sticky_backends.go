package pick

import "net/netip"

// stickyBackends numbers the backends that clients are bound to, so that an entry holds four bytes of it and a whole
// backend is forgotten at once.
type stickyBackends struct {
	numbers map[netip.AddrPort]int32
	list    []stickyBackend
	free    []int32
}

// stickyBackend is one number. It is in use while clients hold it, though the backend may be forgotten.
type stickyBackend struct {
	addr    netip.AddrPort
	clients int
	// forgotten numbers lead nowhere; the same address gets a new one.
	forgotten bool
}

func newStickyBackends() stickyBackends {
	return stickyBackends{numbers: make(map[netip.AddrPort]int32)}
}

// take returns the number of addr for one more client.
func (b *stickyBackends) take(addr netip.AddrPort) int32 {
	n, ok := b.numbers[addr]
	if !ok {
		if last := len(b.free) - 1; last >= 0 {
			n = b.free[last]
			b.free = b.free[:last]
		} else {
			n = int32(len(b.list))
			b.list = append(b.list, stickyBackend{})
		}
		b.list[n] = stickyBackend{addr: addr}
		b.numbers[addr] = n
	}
	b.list[n].clients++
	return n
}

// release says that one client less holds n.
func (b *stickyBackends) release(n int32) {
	at := &b.list[n]
	if at.clients--; at.clients > 0 {
		return
	}
	if !at.forgotten {
		delete(b.numbers, at.addr)
	}
	b.free = append(b.free, n)
}

// forget makes the number of addr lead nowhere.
func (b *stickyBackends) forget(addr netip.AddrPort) {
	if n, ok := b.numbers[addr]; ok {
		b.list[n].forgotten = true
		delete(b.numbers, addr)
	}
}

// address returns the backend of number n, unless it is forgotten.
func (b *stickyBackends) address(n int32) (netip.AddrPort, bool) {
	if b.list[n].forgotten {
		return netip.AddrPort{}, false
	}
	return b.list[n].addr, true
}
