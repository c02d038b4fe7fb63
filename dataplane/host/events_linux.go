package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// events is a socket on which the kernel says what happens to addresses and links. It is never waited for by the host
// itself, which empties it when it looks whether all is intact: so an idle look costs one system call.
type events struct {
	fd   int
	file *os.File
	buf  []byte
}

// eventBuffer is how much the kernel keeps for us. Adding thousands of addresses makes as many events.
const eventBuffer = 8 << 20

func openEvents() (*events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for events: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer); err != nil {
		// Without privilege the usual size has to do; what does not fit is noticed.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, eventBuffer)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing to events: %w", err), unix.Close(fd))
	}
	return &events{fd: fd, file: os.NewFile(uintptr(fd), "netlink events"), buf: make([]byte, 64<<10)}, nil
}

func (e *events) close() error { return e.file.Close() }

// change is one event.
type change struct {
	// link is the device's index.
	link int
	// gone: the address or device is no more.
	gone bool
	// addr is invalid where the event is about the device itself.
	addr netip.Addr
	at   local
	// device is what the event says of the device, where it is about it.
	device device
}

// drain hands over all events that have come. complete is false when the kernel had no room for some: then everything
// has to be read anew.
func (e *events) drain(take func(change)) (complete bool, err error) {
	complete = true
	for {
		n, _, err := unix.Recvfrom(e.fd, e.buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return complete, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			complete = false
			continue
		case err != nil:
			return false, fmt.Errorf("reading events: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(e.buf[:n])
		if err != nil {
			complete = false
			continue
		}
		for i := range messages {
			if c, ok := readChange(&messages[i]); ok {
				take(c)
			}
		}
	}
}

// readChange reads one message: an ifaddrmsg or an ifinfomsg with attributes.
func readChange(m *syscall.NetlinkMessage) (change, bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			return change{}, false
		}
		return readDevice(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(m.Data) < unix.SizeofIfAddrmsg {
			return change{}, false
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(m)
		if err != nil {
			return change{}, false
		}
		c := change{
			link: int(int32(binary.NativeEndian.Uint32(m.Data[4:]))),
			gone: m.Header.Type == unix.RTM_DELADDR,
			at:   local{bits: int(m.Data[1]), flags: int(m.Data[2])},
		}
		c.at.link = c.link
		for _, a := range attributes {
			switch a.Attr.Type {
			case unix.IFA_LOCAL: // wins over IFA_ADDRESS, which is the peer's where they differ
				c.addr, _ = netip.AddrFromSlice(a.Value)
			case unix.IFA_ADDRESS:
				if !c.addr.IsValid() {
					c.addr, _ = netip.AddrFromSlice(a.Value)
				}
			case unix.IFA_FLAGS:
				c.at.flags = int(binary.NativeEndian.Uint32(a.Value))
			}
		}
		return c, c.addr.IsValid()
	}
	return change{}, false
}

func readDevice(m *syscall.NetlinkMessage) (change, bool) {
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil || m.Data[0] != unix.AF_UNSPEC { // bridges speak of their ports with a family
		return change{}, false
	}
	flags := binary.NativeEndian.Uint32(m.Data[8:])
	c := change{
		link:   int(int32(binary.NativeEndian.Uint32(m.Data[4:]))),
		gone:   m.Header.Type == unix.RTM_DELLINK,
		device: device{up: flags&unix.IFF_UP != 0, loopback: flags&unix.IFF_LOOPBACK != 0, running: flags&unix.IFF_RUNNING != 0},
	}
	for _, a := range attributes {
		switch a.Attr.Type {
		case unix.IFLA_IFNAME:
			c.device.name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_MASTER:
			c.device.master = int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return c, true
}
