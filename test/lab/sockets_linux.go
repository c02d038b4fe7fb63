package lab

import (
	"context"
	"net"
	"net/netip"
)

// Listen listens on a numeric address in the namespace. Neither its connections nor those of Dial keep themselves alive:
// nothing is sent that the test does not send.
func (n *NS) Listen(network, address string) (ln net.Listener, err error) {
	c := net.ListenConfig{KeepAlive: -1}
	c.SetMultipathTCP(false)
	err = n.Do(func() (err error) {
		ln, err = c.Listen(n.lab.ctx, network, address)
		return err
	})
	return ln, err
}

// ListenPacket opens a packet socket on a numeric address in the namespace.
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

// DialFrom is Dial from an address and port of the client's choice; the zero value leaves it to the kernel.
func (n *NS) DialFrom(ctx context.Context, network string, from netip.AddrPort, address string) (conn net.Conn, err error) {
	d := net.Dialer{KeepAlive: -1}
	switch {
	case !from.IsValid():
	case network == "udp":
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	default:
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	// A numeric address is dialed by the calling goroutine itself, so the socket is made on its thread.
	err = n.Do(func() (err error) {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
