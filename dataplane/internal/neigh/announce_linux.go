package neigh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// Announce announces to a link's neighbors that this host has the addresses. It sends a gratuitous
// ARP request and reply for each IPv4 address, and an unsolicited neighbor advertisement for each
// IPv6 address.
func Announce(link int, addrs []netip.Addr) error {
	s, err := Open(link)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err = s.Announce(a); err != nil {
			break
		}
	}
	return errors.Join(err, s.Close())
}

// Sender sends announcements and requests on a link. It is not safe for concurrent use.
type Sender struct {
	device *net.Interface
	// arp and ndp are the sockets, which are opened on first use.
	arp, ndp *packet.Conn
	// seen is the link's MAC address at the last call to Changed.
	seen net.HardwareAddr
	// router reports whether the host forwards IPv6 packets that arrive on the link.
	router bool
}

// Open returns a sender on the link with this index.
func Open(link int) (*Sender, error) {
	device, err := net.InterfaceByIndex(link)
	if err != nil {
		return nil, fmt.Errorf("reading interface %d: %w", link, err)
	}
	// Neighbors use the last advertisement. Without the router flag, it would make them remove
	// their routes through this router.
	forwarding, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + device.Name + "/forwarding")
	router := err == nil && strings.TrimSpace(string(forwarding)) != "0"
	return &Sender{device: device, seen: device.HardwareAddr, router: router}, nil
}

// MAC returns the link's current MAC address, or nil if the link is not an Ethernet link.
func (s *Sender) MAC() net.HardwareAddr {
	if len(s.device.HardwareAddr) != 6 {
		return nil // not an Ethernet link
	}
	for _, c := range []*packet.Conn{s.arp, s.ndp} {
		if c != nil {
			return current(c, s.device.HardwareAddr)
		}
	}
	return s.device.HardwareAddr
}

// Changed reports whether the link's MAC address has changed since the last call.
func (s *Sender) Changed() bool {
	before, now := s.seen, s.MAC()
	s.seen = now
	return !bytes.Equal(before, now)
}

// current returns the current MAC address of a socket's link, which may differ from when the socket
// was opened. It uses getsockname. If that fails, it returns before.
func current(c *packet.Conn, before net.HardwareAddr) (mac net.HardwareAddr) {
	mac = before
	raw, err := c.SyscallConn()
	if err != nil {
		return mac
	}
	_ = raw.Control(func(fd uintptr) {
		if a, err := unix.Getsockname(int(fd)); err == nil {
			if link, is := a.(*unix.SockaddrLinklayer); is && link.Halen == 6 {
				mac = net.HardwareAddr(link.Addr[:6])
			}
		}
	}) // a closed socket reports its error when it sends
	return mac
}

// Close closes the open sockets.
func (s *Sender) Close() error {
	var all []error
	for _, c := range []*packet.Conn{s.arp, s.ndp} {
		if c != nil {
			all = append(all, c.Close())
		}
	}
	return errors.Join(all...)
}

// Announce announces to the neighbors that this host has the address.
func (s *Sender) Announce(a netip.Addr) error {
	mac, err := s.sendsFrom(a)
	if mac == nil || err != nil {
		return err
	}
	if a.Is6() {
		return s.send(a, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, unsolicitedAdvertisement(mac, a, s.router))
	}
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return errors.Join(
		s.send(a, broadcast, gratuitousARP(mac, a, arpRequest)),
		s.send(a, broadcast, gratuitousARP(mac, a, arpReply)),
	)
}

// Ask requests an answer from the host that has an address, without claiming the address (RFC 5227,
// section 2.1.1, and RFC 4862, section 5.4.2).
func (s *Sender) Ask(a netip.Addr) error {
	mac, err := s.sendsFrom(a)
	if mac == nil || err != nil {
		return err
	}
	if a.Is6() {
		b := a.As16()
		return s.send(a, net.HardwareAddr{0x33, 0x33, 0xff, b[13], b[14], b[15]}, solicitation(a))
	}
	return s.send(a, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, probe(mac, a))
}

// sendsFrom opens the socket for a's family, if necessary. It returns the link's MAC address, or
// nil if the link is not an Ethernet link.
func (s *Sender) sendsFrom(a netip.Addr) (mac net.HardwareAddr, err error) {
	conn, protocol := s.conn(a)
	if *conn == nil && len(s.device.HardwareAddr) == 6 {
		if *conn, err = packet.Listen(s.device, packet.Datagram, protocol, nil); err != nil {
			return nil, fmt.Errorf("opening a socket on %s: %w", s.device.Name, err)
		}
	}
	return s.MAC(), nil
}

func (s *Sender) conn(a netip.Addr) (conn **packet.Conn, protocol int) {
	if a.Is6() {
		return &s.ndp, unix.ETH_P_IPV6
	}
	return &s.arp, unix.ETH_P_ARP
}

// send sends a packet through the socket that sendsFrom opened for a.
func (s *Sender) send(a netip.Addr, to net.HardwareAddr, body []byte) error {
	conn, _ := s.conn(a)
	if _, err := (*conn).WriteTo(body, &packet.Addr{HardwareAddr: to}); err != nil {
		return fmt.Errorf("announcing %s on %s: %w", a, s.device.Name, err)
	}
	return nil
}

// These are ARP operations.
const (
	arpRequest = 1
	arpReply   = 2
)

// gratuitousARP returns an ARP packet whose sender and target addresses are the announced address
// (RFC 5227, section 3).
func gratuitousARP(mac net.HardwareAddr, a netip.Addr, operation uint16) []byte {
	return arp(operation, mac, a, a)
}

// probe returns an ARP request for an address, with an unspecified sender address.
func probe(mac net.HardwareAddr, a netip.Addr) []byte {
	return arp(arpRequest, mac, netip.IPv4Unspecified(), a)
}

func arp(operation uint16, mac net.HardwareAddr, from, about netip.Addr) []byte {
	b := binary.BigEndian.AppendUint16(nil, 1) // Ethernet
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, 6, 4) // address lengths
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, mac...), from.AsSlice()...)
	if operation == arpReply {
		b = append(b, mac...)
	} else {
		b = append(b, 0, 0, 0, 0, 0, 0)
	}
	return append(b, about.AsSlice()...)
}

const (
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
	icmp6                  = 58
)

// unsolicitedAdvertisement returns an IPv6 packet with a neighbor advertisement to all nodes. The
// advertisement overrides their neighbor entries (RFC 4861, sections 4.4 and 7.2.6).
func unsolicitedAdvertisement(mac net.HardwareAddr, a netip.Addr, router bool) []byte {
	const override, isRouter, targetLink = 0x20, 0x80, 2
	flags := byte(override)
	if router {
		flags |= isRouter
	}
	body := append([]byte{neighbourAdvertisement, 0, 0, 0, flags, 0, 0, 0}, a.AsSlice()...)
	return icmp(a, netip.MustParseAddr("ff02::1"), append(append(body, targetLink, 1), mac...))
}

// solicitation returns an IPv6 packet with a neighbor solicitation for a, and an unspecified
// source.
func solicitation(a netip.Addr) []byte {
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	b := a.As16()
	copy(group[13:], b[13:])
	return icmp(netip.IPv6Unspecified(), netip.AddrFrom16(group), append([]byte{neighbourSolicitation, 0, 0, 0, 0, 0, 0, 0}, b[:]...))
}

// icmp returns an IPv6 packet with an ICMPv6 message.
func icmp(from, to netip.Addr, body []byte) []byte {
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(body)))
	pseudo = append(pseudo, 0, 0, 0, icmp6)
	binary.BigEndian.PutUint16(body[2:], checksum(append(pseudo, body...)))

	header := []byte{0x60, 0, 0, 0}
	header = binary.BigEndian.AppendUint16(header, uint16(len(body)))
	header = append(header, icmp6, 255) // receivers accept only this hop limit
	header = append(append(header, from.AsSlice()...), to.AsSlice()...)
	return append(header, body...)
}

// checksum returns the Internet checksum of an even number of bytes.
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
