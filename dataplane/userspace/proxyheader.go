package userspace

import (
	"fmt"
	"net"
	"net/netip"

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
