package userspace

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"

	"vipd/balancer"
)

// header returns the PROXY header of a TCP connection, which contains the client's address and the
// VIP.
func header(version balancer.ProxyProtocol, client, vip netip.AddrPort) ([]byte, error) {
	h := proxyproto.Header{Version: 1, SourceAddr: net.TCPAddrFromAddrPort(client), DestinationAddr: net.TCPAddrFromAddrPort(vip)}
	if version == balancer.ProxyProtocolV2 {
		h.Version = 2
	}
	return format(h, proxyproto.TCPv4, client, vip)
}

// flowHeader returns the PROXY header of a UDP flow, which always uses version 2.
func flowHeader(client, vip netip.AddrPort) ([]byte, error) {
	h := proxyproto.Header{Version: 2, SourceAddr: net.UDPAddrFromAddrPort(client), DestinationAddr: net.UDPAddrFromAddrPort(vip)}
	return format(h, proxyproto.UDPv4, client, vip)
}

// format encodes a PROXY header. The argument ipv4 selects the transport protocol, in its IPv4
// variant.
func format(h proxyproto.Header, ipv4 proxyproto.AddressFamilyAndProtocol, client, vip netip.AddrPort) ([]byte, error) {
	h.Command, h.TransportProtocol = proxyproto.PROXY, ipv4
	if !vip.Addr().Is4() || !client.Addr().Is4() { // an accepted PROXY header may name a client of the other family
		h.TransportProtocol += proxyproto.TCPv6 - proxyproto.TCPv4
	}
	text, err := h.Format()
	if err != nil {
		return nil, fmt.Errorf("writing a PROXY header for %s: %w", client, err)
	}
	return text, nil
}
