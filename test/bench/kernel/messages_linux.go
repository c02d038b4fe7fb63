package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// messages receives all messages of generic netlink in this network namespace, by a device of type
// nlmon. It counts every message to the kernel, whatever its sender.
type messages struct {
	link   netlink.Link
	fd     int
	family uint16 // IPVS
}

// monitor is the device's name, and backlog the size of its receive buffer.
const (
	monitor = "nlmon0"
	backlog = 256 << 20
)

// watchIPVS starts to watch.
func watchIPVS() (*messages, error) {
	family, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		return nil, fmt.Errorf("looking for IPVS: %w", err)
	}
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: monitor}, LinkType: "nlmon"}
	if err := netlink.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("making a device that sees netlink (module nlmon): %w", err)
	}
	m := &messages{link: link, fd: -1, family: family.ID}
	if err := m.open(); err != nil {
		m.close()
		return nil, fmt.Errorf("watching netlink: %w", err)
	}
	return m, nil
}

func (m *messages) open() (err error) {
	link, err := netlink.LinkByName(monitor)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil { // first, because a socket bound to a device that is down returns an error
		return err
	}
	if m.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(m.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, backlog); err != nil {
		return err
	}
	every := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8 // in network order
	return unix.Bind(m.fd, &unix.SockaddrLinklayer{Protocol: every, Ifindex: link.Attrs().Index})
}

func (m *messages) close() {
	if m.fd >= 0 {
		_ = unix.Close(m.fd)
	}
	_ = netlink.LinkDel(m.link)
}

// count returns the number of messages to IPVS since the last call, and how many of them change
// something.
func (m *messages) count() (all, changing int, err error) {
	frame := make([]byte, 1<<20)
	for {
		n, from, err := unix.Recvfrom(m.fd, frame, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			s, err := unix.GetsockoptTpacketStats(m.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
			if err == nil && s.Drops > 0 {
				err = fmt.Errorf("%d netlink messages went uncounted", s.Drops)
			}
			return all, changing, err
		case err != nil:
			return all, changing, fmt.Errorf("watching netlink: %w", err)
		}
		sender, ok := from.(*unix.SockaddrLinklayer)
		if !ok || sender.Protocol != uint16(unix.NETLINK_GENERIC)<<8 {
			continue
		}
		a, c := m.read(frame[:n])
		all, changing = all+a, changing+c
	}
}

// read counts the messages to IPVS of one frame.
func (m *messages) read(frame []byte) (all, changing int) {
	for len(frame) > unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(frame))
		kind, flags := binary.NativeEndian.Uint16(frame[4:]), binary.NativeEndian.Uint16(frame[6:])
		if size < unix.SizeofNlMsghdr || size > len(frame) {
			return all, changing
		}
		if kind == m.family && flags&unix.NLM_F_REQUEST != 0 && size > unix.SizeofNlMsghdr {
			all++
			if !reads(frame[unix.SizeofNlMsghdr]) {
				changing++
			}
		}
		frame = frame[min(len(frame), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return all, changing
}

// reads reports whether a command of IPVS only reads: IPVS_CMD_GET_SERVICE, _GET_DEST, _GET_DAEMON,
// _GET_CONFIG and _GET_INFO of linux/ip_vs.h.
func reads(command byte) bool {
	switch command {
	case 4, 8, 11, 13, 15:
		return true
	}
	return false
}
