package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// events is a socket on which the kernel says what happens to addresses and links. It is never waited for by the host
// itself, which empties it when it looks whether all is intact: so an idle look costs one system call.
type events struct{ *nlsock.Socket }

// eventBuffer is how much the kernel keeps for us. Adding thousands of addresses makes as many events. Without privilege the usual
// size has to do; what does not fit is noticed.
const eventBuffer = 8 << 20

// eventGroups are those of addresses and links.
func eventGroups() []int {
	return []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}
}

// subscribe opens a socket on which the kernel also says which routes of ours are gone. Of others' routes a host may have a
// million: the kernel itself drops what it says of these.
func subscribe(room int) (*nlsock.Socket, error) {
	s, err := nlsock.Subscribe(unix.NETLINK_ROUTE, room, append(eventGroups(), unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)...)
	if err != nil {
		return nil, err
	}
	wire := func(n uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
	}
	const equal, end = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const kindAt, protocolAt = 4, unix.SizeofNlMsghdr + routeProtocolAt
	err = s.Filter([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: kindAt},
		{Code: equal, K: wire(unix.RTM_NEWROUTE), Jt: 3},
		{Code: equal, K: wire(unix.RTM_DELROUTE), Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: protocolAt},
		{Code: equal, K: routeProtocol, Jt: 1},
		{Code: end, K: 0},
		{Code: end, K: ^uint32(0)},
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

// change is one event.
type change struct {
	// link is the device's index.
	link int
	// gone: the address, device or route is no more.
	gone bool
	// addr is invalid where the event is about the device itself.
	addr netip.Addr
	at   local
	// route: a route of ours to addr is gone.
	route bool
	// device is what the event says of the device, where it is about it.
	device device
}

// drain hands over all events that have come. complete is false when the kernel had no room for some: then everything
// has to be read anew.
func (e *events) drain(take func(change)) (complete bool, err error) {
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
			if c, ok := readChange(&m); ok {
				take(c)
			}
		}
		complete = complete && m.Err == nil
	}
}

// readChange reads one message: an ifaddrmsg, an ifinfomsg or a rtmsg with attributes.
func readChange(m *nlsock.Messages) (change, bool) {
	switch {
	case (m.Kind == unix.RTM_NEWLINK || m.Kind == unix.RTM_DELLINK) && len(m.Body) >= unix.SizeofIfInfomsg:
		return readDevice(m)
	case (m.Kind == unix.RTM_NEWADDR || m.Kind == unix.RTM_DELADDR) && len(m.Body) >= unix.SizeofIfAddrmsg:
		return readAddress(m)
	case m.Kind == unix.RTM_DELROUTE && len(m.Body) >= unix.SizeofRtMsg && m.Body[routeProtocolAt] == routeProtocol:
		return readRoute(m)
	}
	return change{}, false
}

func readAddress(m *nlsock.Messages) (change, bool) {
	c := change{
		link: int(int32(binary.NativeEndian.Uint32(m.Body[4:]))),
		gone: m.Kind == unix.RTM_DELADDR,
		at:   local{bits: int(m.Body[1]), flags: int(m.Body[2])},
	}
	c.at.link = c.link
	a := nlsock.In(m.Body[unix.SizeofIfAddrmsg:])
	for a.Next() {
		switch a.Kind {
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
	return c, c.addr.IsValid() && a.Err == nil
}

// routeProtocolAt is where a rtmsg has the protocol.
const routeProtocolAt = 5

func readRoute(m *nlsock.Messages) (change, bool) {
	c := change{gone: true, route: true}
	a := nlsock.In(m.Body[unix.SizeofRtMsg:])
	for a.Next() {
		if a.Kind == unix.RTA_DST {
			c.addr, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return c, c.addr.IsValid() && a.Err == nil
}

func readDevice(m *nlsock.Messages) (change, bool) {
	if m.Body[0] != unix.AF_UNSPEC { // bridges speak of their ports with a family
		return change{}, false
	}
	flags := binary.NativeEndian.Uint32(m.Body[8:])
	c := change{
		link:   int(int32(binary.NativeEndian.Uint32(m.Body[4:]))),
		gone:   m.Kind == unix.RTM_DELLINK,
		device: device{up: flags&unix.IFF_UP != 0, loopback: flags&unix.IFF_LOOPBACK != 0, running: flags&unix.IFF_RUNNING != 0},
	}
	a := nlsock.In(m.Body[unix.SizeofIfInfomsg:])
	for a.Next() {
		switch a.Kind {
		case unix.IFLA_IFNAME:
			c.device.name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_MASTER:
			c.device.master = int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return c, a.Err == nil
}
