package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// events is a socket that receives the kernel's events about addresses, links and vipd's routes. No
// goroutine blocks on it. Intact drains it, so a check without events costs one system call.
type events struct{ *nlsock.Socket }

// eventBuffer is the size of the receive buffer. It is large because adding thousands of addresses
// causes thousands of events. An unprivileged process gets only the default size, and detects an
// overflow.
const eventBuffer = 8 << 20

// eventGroups returns the multicast groups of links and addresses.
func eventGroups() []int {
	return []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}
}

// subscribe opens a socket for events about links and addresses. The socket also receives removals
// of vipd's routes, and all events about routes with metrics. A filter in the kernel drops events
// about other routes, because there may be a million of them.
func subscribe(room int) (*nlsock.Socket, error) {
	s, err := nlsock.Subscribe(unix.NETLINK_ROUTE, room, append(eventGroups(), unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)...)
	if err != nil {
		return nil, err
	}
	wire := func(n uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
	}
	const equal, end = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const findAttribute = 1<<32 - 0x1000 + 12 // SKF_AD_OFF + SKF_AD_NLATTR (linux/filter.h): finds the attribute of type X, starting at offset A
	const kindAt, protocolAt = 4, unix.SizeofNlMsghdr + routeProtocolAt
	err = s.Filter([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: kindAt},
		{Code: equal, K: wire(unix.RTM_NEWROUTE), Jt: 3},
		{Code: equal, K: wire(unix.RTM_DELROUTE), Jf: 6},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: protocolAt},
		{Code: equal, K: routeProtocol, Jt: 4},
		{Code: unix.BPF_LD | unix.BPF_IMM, K: unix.SizeofNlMsghdr + unix.SizeofRtMsg},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: unix.RTA_METRICS},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: findAttribute},
		{Code: equal, K: 0, Jt: 1},
		{Code: end, K: ^uint32(0)},
		{Code: end, K: 0},
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func openEvents() (*events, error) {
	s, err := subscribe(eventBuffer)
	if err != nil {
		return nil, err
	}
	s.Drain()
	return &events{s}, nil
}

// netEvent is an event about an address, a device or a route.
type netEvent struct {
	// link is the device's index.
	link int
	// gone reports whether the address, device or route was removed.
	gone bool
	// addr is invalid if the event is about the device itself.
	addr netip.Addr
	at   local
	// route reports whether the event is about vipd's route to addr.
	route bool
	// mtu reports whether the event is about a route with its own MTU.
	mtu bool
	// device is the device's state, if the event is about the device.
	device device
}

// drain passes all pending events to handle. If the kernel dropped events, complete is false, and
// everything must be read again.
func (e *events) drain(handle func(netEvent)) (complete bool, err error) {
	complete = true
	for {
		m, err := e.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return complete, nil
		case errors.Is(err, unix.ENOBUFS):
			complete = false
			continue
		case err != nil:
			return false, fmt.Errorf("reading events: %w", err)
		}
		for m.Next() {
			if c, ok := readEvent(&m); ok {
				handle(c)
			}
		}
		complete = complete && m.Err == nil
	}
}

// readEvent decodes a message: an ifaddrmsg, an ifinfomsg or an rtmsg with attributes.
func readEvent(m *nlsock.Messages) (netEvent, bool) {
	switch {
	case (m.Kind == unix.RTM_NEWLINK || m.Kind == unix.RTM_DELLINK) && len(m.Body) >= unix.SizeofIfInfomsg:
		return readDevice(m)
	case (m.Kind == unix.RTM_NEWADDR || m.Kind == unix.RTM_DELADDR) && len(m.Body) >= unix.SizeofIfAddrmsg:
		return readAddress(m)
	case m.Kind == unix.RTM_DELROUTE && len(m.Body) >= unix.SizeofRtMsg && m.Body[routeProtocolAt] == routeProtocol:
		return readRoute(m)
	case (m.Kind == unix.RTM_NEWROUTE || m.Kind == unix.RTM_DELROUTE) && setsMTU(m.Body):
		return netEvent{gone: m.Kind == unix.RTM_DELROUTE, mtu: true}, true
	}
	return netEvent{}, false
}

func readAddress(m *nlsock.Messages) (netEvent, bool) {
	c := netEvent{
		link: int(int32(binary.NativeEndian.Uint32(m.Body[4:]))),
		gone: m.Kind == unix.RTM_DELADDR,
		at:   local{bits: int(m.Body[1]), flags: int(m.Body[2])},
	}
	c.at.link = c.link
	a := nlsock.In(m.Body[unix.SizeofIfAddrmsg:])
	for a.Next() {
		switch a.Kind {
		case unix.IFA_LOCAL: // preferred, because on point-to-point links IFA_ADDRESS is the peer's address
			c.addr, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_ADDRESS:
			if !c.addr.IsValid() {
				c.addr, _ = netip.AddrFromSlice(a.Value)
			}
		case unix.IFA_FLAGS:
			c.at.flags = int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return c, c.addr.IsValid() && a.Err == nil
}

// routeProtocolAt is the protocol's offset in an rtmsg.
const routeProtocolAt = 5

func readRoute(m *nlsock.Messages) (netEvent, bool) {
	c := netEvent{gone: true, route: true}
	a := nlsock.In(m.Body[unix.SizeofRtMsg:])
	for a.Next() {
		if a.Kind == unix.RTA_DST {
			c.addr, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return c, c.addr.IsValid() && a.Err == nil
}

func readDevice(m *nlsock.Messages) (netEvent, bool) {
	if m.Body[0] != unix.AF_UNSPEC { // events of a bridge about its ports have another family
		return netEvent{}, false
	}
	flags := binary.NativeEndian.Uint32(m.Body[8:])
	c := netEvent{
		link:   int(int32(binary.NativeEndian.Uint32(m.Body[4:]))),
		gone:   m.Kind == unix.RTM_DELLINK,
		device: device{up: flags&unix.IFF_UP != 0, loopback: flags&unix.IFF_LOOPBACK != 0, running: flags&unix.IFF_RUNNING != 0},
	}
	dummy := false
	a := nlsock.In(m.Body[unix.SizeofIfInfomsg:])
	for a.Next() {
		switch a.Kind {
		case unix.IFLA_MTU:
			c.device.mtu = int(binary.NativeEndian.Uint32(a.Value))
		case unix.IFLA_LINKINFO:
			for info := nlsock.In(a.Value); info.Next(); {
				dummy = dummy || info.Kind == unix.IFLA_INFO_KIND && unix.ByteSliceToString(info.Value) == dummyKind
			}
		case unix.IFLA_IFNAME:
			c.device.name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_MASTER:
			c.device.master = int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	if dummy {
		c.device.mtu = 0
	}
	return c, a.Err == nil
}
