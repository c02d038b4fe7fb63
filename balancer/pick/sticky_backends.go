package pick

import "net/netip"

// stickyBackends numbers the backends that clients are bound to, so that an entry holds four bytes of it.
type stickyBackends struct {
	numbers map[netip.AddrPort]int32
	list    []stickyBackend
	free    []int32
}

// stickyBackend is one number, in use while clients hold it.
type stickyBackend struct {
	addr    netip.AddrPort
	clients int
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
	delete(b.numbers, at.addr)
	b.free = append(b.free, n)
}
