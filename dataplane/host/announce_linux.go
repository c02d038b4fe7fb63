package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// announce tells the neighbours on a link that addresses are here now: a gratuitous ARP request and reply for each IPv4
// address, an unsolicited neighbour advertisement for each IPv6 one.
func announce(link int, addrs []netip.Addr) error {
	device, err := net.InterfaceByIndex(link)
	if err != nil {
		return err
	}
	if len(device.HardwareAddr) != 6 {
		return nil // no Ethernet: no neighbours that keep tables
	}
	return errors.Join(
		announceTo(device, addrs, unix.ETH_P_ARP, netip.Addr.Is4, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, func(a netip.Addr) [][]byte {
			return [][]byte{gratuitousARP(device.HardwareAddr, a, arpRequest), gratuitousARP(device.HardwareAddr, a, arpReply)}
		}),
		announceTo(device, addrs, unix.ETH_P_IPV6, netip.Addr.Is6, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, func(a netip.Addr) [][]byte {
			return [][]byte{unsolicitedAdvertisement(device.HardwareAddr, a)}
		}),
	)
}

// announceTo sends the frames of the addresses of one family.
func announceTo(device *net.Interface, addrs []netip.Addr, protocol int, is func(netip.Addr) bool, to net.HardwareAddr, frames func(netip.Addr) [][]byte) error {
	var conn *packet.Conn
	for _, a := range addrs {
		if !is(a) {
			continue
		}
		if conn == nil {
			var err error
			if conn, err = packet.Listen(device, packet.Datagram, protocol, nil); err != nil {
				return err
			}
		}
		for _, f := range frames(a) {
			if _, err := conn.WriteTo(f, &packet.Addr{HardwareAddr: to}); err != nil {
				return errors.Join(fmt.Errorf("announcing %s: %w", a, err), conn.Close())
			}
		}
	}
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// The operations of ARP.
const (
	arpRequest = 1
	arpReply   = 2
)

// gratuitousARP is an ARP packet in which both addresses are the one announced (RFC 5227, section 3).
func gratuitousARP(mac net.HardwareAddr, a netip.Addr, operation uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, 1) // Ethernet
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, 6, 4) // lengths of the addresses
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, mac...), a.AsSlice()...)
	if operation == arpReply {
		b = append(b, mac...)
	} else {
		b = append(b, 0, 0, 0, 0, 0, 0)
	}
	return append(b, a.AsSlice()...)
}

// unsolicitedAdvertisement is an IPv6 packet with a neighbour advertisement to all nodes that overrides what they know
// (RFC 4861, sections 4.4 and 7.2.6).
func unsolicitedAdvertisement(mac net.HardwareAddr, a netip.Addr) []byte {
	const override, advertisement, targetLink, icmp6 = 0x20, 136, 2, 58
	allNodes := netip.MustParseAddr("ff02::1")
	body := append([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, a.AsSlice()...)
	body = append(append(body, targetLink, 1), mac...)

	pseudo := append(a.AsSlice(), allNodes.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(body)))
	pseudo = append(pseudo, 0, 0, 0, icmp6)
	binary.BigEndian.PutUint16(body[2:], checksum(append(pseudo, body...)))

	header := []byte{0x60, 0, 0, 0}
	header = binary.BigEndian.AppendUint16(header, uint16(len(body)))
	header = append(header, icmp6, 255) // receivers refuse any other hop limit
	header = append(append(header, a.AsSlice()...), allNodes.AsSlice()...)
	return append(header, body...)
}

// checksum is the internet's, of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
