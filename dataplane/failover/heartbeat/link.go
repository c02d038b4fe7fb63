package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/failover"
)

// Port is the UDP port of heartbeats.
const Port = 9898

// Link has a socket on each of a node's addresses. Only one goroutine may call Send, Reach, Network
// and Change.
type Link struct {
	at      []failover.Address
	keys    atomic.Pointer[[][]byte]
	foreign atomic.Int64
	// lastForeign is when the last datagram with another key arrived, in nanoseconds since 1970.
	lastForeign atomic.Int64

	mu    sync.Mutex // guards the fields below, which Run may read concurrently
	conns []*net.UDPConn
	// receive starts to receive on a socket. It is nil before Run is called and after Run returns.
	receive func(on int, c *net.UDPConn, at netip.Addr)
}

// Listen opens the sockets.
func Listen(at []failover.Address) (*Link, error) {
	l := &Link{}
	if err := l.Change(at); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Change replaces the list of the node's addresses, and opens sockets for new addresses. Addresses
// must never be removed from the list, so their indexes do not change.
func (l *Link) Change(at []failover.Address) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, a := range at {
		if i < len(l.at) && l.at[i].Addr == a.Addr {
			l.at[i] = a
			continue
		}
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Addr, Port)))
		if err != nil {
			return fmt.Errorf("opening UDP port %d for heartbeats: %w", Port, err)
		}
		if i < len(l.at) {
			_ = l.conns[i].Close() // the device no longer has this address
			l.at[i], l.conns[i] = a, c
		} else {
			l.at, l.conns = append(l.at, a), append(l.conns, c)
		}
		if l.receive != nil {
			l.receive(i, c, a.Addr)
		}
	}
	return nil
}

// Close closes the sockets.
func (l *Link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []error
	for _, c := range l.conns {
		all = append(all, c.Close())
	}
	l.receive = nil
	return errors.Join(all...)
}

// SetKeys sets the accepted keys. The first key signs outgoing datagrams. Without keys, no datagram
// is sent or accepted.
func (l *Link) SetKeys(keys [][]byte) { l.keys.Store(&keys) }

// Foreign counts the datagrams that were signed with another key.
func (l *Link) Foreign() int64 { return l.foreign.Load() }

// foreignWindow is how long SawForeign reports a datagram with another key.
const foreignWindow = time.Minute

// SawForeign reports whether a datagram with another key arrived within the last minute.
func (l *Link) SawForeign() bool {
	return time.Now().UnixNano()-l.lastForeign.Load() < int64(foreignWindow)
}

// Run calls heard with each accepted message and the index of the address at which it arrived. When
// ctx is canceled, Run closes the sockets and returns.
func (l *Link) Run(ctx context.Context, heard func(on int, m failover.Message)) {
	var all sync.WaitGroup
	l.mu.Lock()
	l.receive = func(on int, c *net.UDPConn, at netip.Addr) {
		all.Go(func() { l.receiveBy(ctx, c, at, func(m failover.Message) { heard(on, m) }) })
	}
	for i, c := range l.conns {
		l.receive(i, c, l.at[i].Addr)
	}
	l.mu.Unlock()
	<-ctx.Done()
	_ = l.Close()
	all.Wait()
}

func (l *Link) receiveBy(ctx context.Context, c *net.UDPConn, at netip.Addr, heard func(failover.Message)) {
	b := make([]byte, 2048)
	for {
		n, _, err := c.ReadFromUDPAddrPort(b)
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		keys := l.keys.Load()
		if err != nil || keys == nil {
			continue // an ICMP error caused by a peer's closed port
		}
		switch m, err := Decode(b[:n], at, *keys); {
		case errors.Is(err, ErrKey):
			l.foreign.Add(1)
			l.lastForeign.Store(time.Now().UnixNano())
		case err == nil:
			heard(m)
		}
	}
}

// Send sends a message to a peer, from the address with index on, or from all addresses if on is
// -1. Each address sends to the peer's addresses that share a network with it. The address from
// which this node reaches etcd also sends to the address from which the peer reaches etcd.
func (l *Link) Send(m failover.Message, on int, peer []failover.Address) {
	keys := l.keys.Load()
	if keys == nil || len(*keys) == 0 {
		return
	}
	for i := range l.at {
		if on >= 0 && i != on {
			continue
		}
		for _, to := range l.Reach(i, peer) {
			_, _ = l.conns[i].WriteToUDPAddrPort(Encode(m, to, (*keys)[0]), netip.AddrPortFrom(to, Port)) // a failure has the same effect as a lost datagram
		}
	}
}

// Network returns the network of this node's address i. If the address has no network, it returns
// the address itself.
func (l *Link) Network(i int) string {
	a := l.at[i]
	for _, n := range a.Networks {
		if n.Contains(a.Addr) {
			return n.String()
		}
	}
	return a.Addr.String()
}

// Reach returns a peer's addresses that this node can reach from its address with index from.
func (l *Link) Reach(from int, peer []failover.Address) (to []netip.Addr) {
	a := l.at[from]
	for i, p := range peer {
		shared := slices.ContainsFunc(p.Networks, func(n netip.Prefix) bool { return slices.Contains(a.Networks, n) })
		if (shared || from == way(l.at) && i == way(peer)) && a.Addr.Is4() == p.Addr.Is4() {
			to = append(to, p.Addr)
		}
	}
	return to
}

// way returns the index of the address from which a node reaches etcd: the first address without
// networks or, if there is none, the first address.
func way(at []failover.Address) int {
	return max(slices.IndexFunc(at, func(a failover.Address) bool { return len(a.Networks) == 0 }), 0)
}
