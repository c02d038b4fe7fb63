package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These are the sizes of a frame's headers: Ethernet, IPv4, TCP without options, and UDP.
const (
	ethernetSize = 14
	ipSize       = 20
	tcpSize      = 20
	udpSize      = 8
	frameSize    = ethernetSize + ipSize + tcpSize
)

// flood sends TCP SYNs for new connections, or datagrams of existing flows, on one link.
type flood struct {
	fd       int
	frames   [][frameSize]byte
	messages []unix.Mmsghdr
	to       []netip.Addr
	random   *rand.Rand
	count    uint32 // number of packets so far, from which the source is derived
	flows    uint32 // number of flows of datagrams; 0 for SYNs
}

// burst is the number of frames sent by one system call.
const burst = 64

// flowCount is the number of established flows.
const flowCount = 256

// newFlood opens a flood into the box x. Each SYN is sent to a random address in the list to. The
// flows of datagrams use the addresses in turn.
func newFlood(x *box, to []netip.Addr) (*flood, error) { return newFloodTo(x, x.peer, to) }

// newFloodTo opens a flood into the box x with another destination of frames.
func newFloodTo(x *box, mac net.HardwareAddr, to []netip.Addr) (*flood, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // with protocol 0 the socket receives nothing
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: x.link.Attrs().Index}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("binding a packet socket to %s: %w", x.link.Attrs().Name, err)
	}
	f := &flood{fd: fd, frames: make([][frameSize]byte, burst), messages: make([]unix.Mmsghdr, burst), to: to,
		random: rand.New(rand.NewPCG(1, uint64(len(to)))),
		count:  rand.Uint32(), // a random start, because the box still remembers connections of earlier floods
	}
	size, protocol := frameSize, byte(unix.IPPROTO_TCP)
	if x.spec.Through == established {
		size, protocol, f.flows = ethernetSize+ipSize+udpSize, unix.IPPROTO_UDP, flowCount
	}
	vectors := make([]unix.Iovec, burst)
	for i := range f.frames {
		frame := &f.frames[i]
		copy(frame[:], mac)
		copy(frame[6:], x.link.Attrs().HardwareAddr)
		copy(frame[12:], []byte{
			8, 0, // IPv4
			0x45, 0, 0, byte(size - ethernetSize), 0, 0, 0x40, 0, 64, protocol, // the IPv4 header up to the checksum, with the flag "don't fragment" and TTL 64
		})
		transport := frame[ethernetSize+ipSize:]
		binary.BigEndian.PutUint16(transport[2:], servicePort)
		if f.flows > 0 {
			transport[5] = udpSize // the checksum 0 means none
		} else {
			copy(transport[12:], []byte{tcpSize / 4 << 4, 0x02, 0xff, 0xff}) // header length, SYN flag and window
		}
		vectors[i].Base = &frame[0]
		vectors[i].SetLen(size)
		f.messages[i].Hdr.Iov = &vectors[i]
		f.messages[i].Hdr.SetIovlen(1)
	}
	return f, nil
}

func (f *flood) close() { _ = unix.Close(f.fd) }

// send sends n packets, and returns the duration of the system calls.
func (f *flood) send(n int) (took time.Duration, err error) {
	for n > 0 {
		part := min(n, burst)
		for i := range part {
			f.address(&f.frames[i])
		}
		// A raw system call excludes the work of Go's runtime.
		began := time.Now()
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(f.fd), uintptr(unsafe.Pointer(&f.messages[0])), uintptr(part), 0, 0, 0)
		took += time.Since(began)
		if errno != 0 {
			return took, fmt.Errorf("sending packets: %w", errno)
		}
		n -= int(sent)
	}
	return took, nil
}

// address sets the next source and a random destination in a frame.
func (f *flood) address(frame *[frameSize]byte) {
	f.count++
	ip, transport := frame[ethernetSize:ethernetSize+ipSize], frame[ethernetSize+ipSize:]
	at := f.random.IntN(len(f.to))
	if f.flows > 0 {
		f.count %= f.flows
		at = int(f.count) % len(f.to)
	}
	to := f.to[at].As4()
	// The factor is odd, so all addresses of the network are used before the first is repeated.
	binary.BigEndian.PutUint32(ip[12:], clientBase+f.count*0x9e3779b1&(1<<clientBits-1))
	copy(ip[16:], to[:])
	binary.BigEndian.PutUint16(transport, uint16(1024+f.count%60_000))
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], checksum(0, ip))
	if f.flows > 0 {
		return
	}
	binary.BigEndian.PutUint16(transport[16:], 0)
	// This is the pseudo header: both addresses, protocol and length.
	pseudo := sum(unix.IPPROTO_TCP+tcpSize, ip[12:20])
	binary.BigEndian.PutUint16(transport[16:], checksum(pseudo, transport))
}

// checksum computes the checksum of RFC 1071.
func checksum(start uint32, b []byte) uint16 {
	s := sum(start, b)
	s = s>>16 + s&0xffff
	s += s >> 16
	return ^uint16(s)
}

func sum(s uint32, b []byte) uint32 {
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	return s
}
