package main

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tap receives the frames that arrive at endpoints, and answers them.
type tap struct{ fd int }

// openTap opens a tap on the link where the endpoints would be.
func openTap(far netlink.Link) (*tap, error) {
	const all = 0x0300 // ETH_P_ALL in network byte order: other protocols are received only after the chain that drops
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: far.Attrs().Index}); err != nil {
		return nil, errors.Join(fmt.Errorf("binding a packet socket to %s: %w", far.Attrs().Name, err), unix.Close(fd))
	}
	return &tap{fd}, nil
}

// answer sends each received datagram back to its sender, closes the tap, and returns the number of
// answers.
func (t *tap) answer() (n int, err error) {
	defer func() { err = errors.Join(err, unix.Close(t.fd)) }()
	b := make([]byte, 2048)
	for {
		size, from, err := unix.Recvfrom(t.fd, b, 0)
		if errors.Is(err, unix.EAGAIN) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING || size < ethernetSize+ipSize+udpSize {
			continue
		}
		swap(b[:12])
		swap(b[ethernetSize+12 : ethernetSize+20])
		swap(b[ethernetSize+ipSize : ethernetSize+ipSize+4])
		if err := unix.Send(t.fd, b[:size], 0); err != nil {
			return n, fmt.Errorf("answering a datagram: %w", err)
		}
		n++
	}
}

// swap exchanges the two halves of b. Checksums stay valid.
func swap(b []byte) {
	for i, half := 0, len(b)/2; i < half; i++ {
		b[i], b[half+i] = b[half+i], b[i]
	}
}
