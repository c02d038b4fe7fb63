package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"

	"vipd/balancer"
)

// header returns the PROXY header, which tells a backend the client's address and the VIP.
func header(version balancer.ProxyProtocol, client, vip netip.AddrPort) ([]byte, error) {
	h := proxyproto.Header{
		Version:           1,
		Command:           proxyproto.PROXY,
		TransportProtocol: proxyproto.TCPv4,
		SourceAddr:        net.TCPAddrFromAddrPort(client),
		DestinationAddr:   net.TCPAddrFromAddrPort(vip),
	}
	if version == balancer.ProxyProtocolV2 {
		h.Version = 2
	}
	if !vip.Addr().Is4() {
		h.TransportProtocol = proxyproto.TCPv6
	}
	text, err := h.Format()
	if err != nil {
		return nil, fmt.Errorf("writing a PROXY header for %s: %w", client, err)
	}
	return text, nil
}

// writeHeader sends the header as the first bytes.
func writeHeader(server *net.TCPConn, version balancer.ProxyProtocol, client, vip netip.AddrPort, patience time.Duration) error {
	text, err := header(version, client, vip)
	if err != nil {
		return err
	}
	if err := server.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := server.Write(text); err != nil {
		return err
	}
	return server.SetWriteDeadline(time.Time{})
}
