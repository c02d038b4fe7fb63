package lab

import (
	"context"
	"net"
	"net/netip"
)

// Listen listens on a numeric address in the namespace. Connections from the listener and from Dial
// send no keepalives, so only the test sends data.
func (n *NS) Listen(network, address string) (ln net.Listener, err error) {
	c := net.ListenConfig{KeepAlive: -1}
	c.SetMultipathTCP(false)
	err = n.Do(func() (err error) {
		ln, err = c.Listen(n.lab.ctx, network, address)
		return err
	})
	return ln, err
}

// ListenPacket opens a datagram socket, such as UDP, on a numeric address in the namespace.
func (n *NS) ListenPacket(network, address string) (pc net.PacketConn, err error) {
	var c net.ListenConfig
	err = n.Do(func() (err error) {
		pc, err = c.ListenPacket(n.lab.ctx, network, address)
		return err
	})
	return pc, err
}

// Dial connects to a numeric address from the namespace.
func (n *NS) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return n.DialFrom(ctx, network, netip.AddrPort{}, address)
}

// DialFrom is like Dial, but uses the source address and port from. If either is zero, the kernel
// chooses it.
func (n *NS) DialFrom(ctx context.Context, network string, from netip.AddrPort, address string) (conn net.Conn, err error) {
	d := net.Dialer{KeepAlive: -1}
	switch {
	case !from.IsValid():
	case network == "udp":
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	default:
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	// The calling goroutine dials a numeric address itself, so its thread creates the socket.
	err = n.Do(func() (err error) {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
