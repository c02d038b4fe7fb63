package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// beyond is how far SendStray's sequence number is ahead of the next expected number. It is
// larger than any window.
const beyond = 1 << 30

// SendStray sends a segment from c, which is the namespace's end of a TCP connection. The segment's
// sequence number is outside the window, and its acknowledgment is correct, as after reordering or
// a late retransmission. The other end answers with an ACK. A host that does not know the
// connection answers with a reset, which closes the connection.
func (n *NS) SendStray(c net.Conn) error {
	sends, expects, err := sequence(c)
	if err != nil {
		return fmt.Errorf("asking for the sequence numbers of a connection: %w", err)
	}
	from, to := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	s := make([]byte, 21) // a byte of data
	binary.BigEndian.PutUint16(s[0:], from.Port())
	binary.BigEndian.PutUint16(s[2:], to.Port())
	binary.BigEndian.PutUint32(s[4:], sends+beyond)
	binary.BigEndian.PutUint32(s[8:], expects)
	s[12], s[13] = 5<<4, 1<<4 // a header of five words, with the flag ACK
	binary.BigEndian.PutUint16(s[14:], 1000)
	return n.sendSegment(from, to, s)
}

// sendSegment sends a TCP segment after computing its checksum.
func (n *NS) sendSegment(from, to netip.AddrPort, s []byte) error {
	binary.BigEndian.PutUint16(s[16:], checksum(from.Addr(), to.Addr(), s))
	network := "ip4:tcp"
	if from.Addr().Is6() {
		network = "ip6:tcp"
	}
	return n.Do(func() error {
		raw, err := net.ListenIP(network, &net.IPAddr{IP: from.Addr().AsSlice()})
		if err != nil {
			return err
		}
		defer raw.Close()
		_, err = raw.WriteTo(s, &net.IPAddr{IP: to.Addr().AsSlice()})
		return err
	})
}

// sequence returns the next sequence numbers that a connection sends and expects.
func sequence(c net.Conn) (sends, expects uint32, err error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	const receiveQueue, sendQueue, off = 1, 2, -1 // TCP_RECV_QUEUE, TCP_SEND_QUEUE, TCP_REPAIR_OFF_NO_WP
	number := func(fd, queue int) (int, error) {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue); err != nil {
			return 0, err
		}
		return unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	}
	controlErr := raw.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
			return
		}
		var s, e int
		if s, err = number(int(fd), sendQueue); err == nil {
			e, err = number(int(fd), receiveQueue)
		}
		if offErr := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, off); err == nil {
			err = offErr
		}
		sends, expects = uint32(s), uint32(e)
	})
	if controlErr != nil {
		return 0, 0, controlErr
	}
	return sends, expects, err
}

// checksum returns the checksum of a TCP segment whose checksum field is 0.
func checksum(from, to netip.Addr, segment []byte) uint16 {
	text := append(append(from.AsSlice(), to.AsSlice()...), 0, unix.IPPROTO_TCP, 0, byte(len(segment)))
	text = append(text, segment...)
	if len(text)%2 == 1 {
		text = append(text, 0)
	}
	sum := uint32(0)
	for i := 0; i < len(text); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(text[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// SendSYN sends a TCP SYN with the addresses of an existing connection, as if the client opened a
// new connection from the same port.
func (n *NS) SendSYN(from, to netip.AddrPort) error {
	s := make([]byte, 20)
	binary.BigEndian.PutUint16(s[0:], from.Port())
	binary.BigEndian.PutUint16(s[2:], to.Port())
	binary.BigEndian.PutUint32(s[4:], beyond)
	s[12], s[13] = 5<<4, 1<<1 // a header of five words, with the flag SYN
	binary.BigEndian.PutUint16(s[14:], 1000)
	return n.sendSegment(from, to, s)
}

// Vanish closes a TCP connection without a packet, as if its host had lost power.
func Vanish(c net.Conn) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) })
	return errors.Join(controlErr, err, c.Close())
}
