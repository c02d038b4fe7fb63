package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/nlsock"
)

// protocolVRRP is the number of the IP protocol.
const protocolVRRP = 112

// advertTTL is the TTL or hop limit of each sent packet: it shows a receiver that no router has
// forwarded the packet.
const advertTTL = 255

// vrrpGroup returns the multicast group of adverts.
func vrrpGroup(v4 bool) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{224, 0, 0, 18})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 0x12})
}

// Adverts sends and receives the packets of VRRP. It has a raw socket for each interface and
// family, which receives multicast and unicast packets, except its own multicast packets. Any
// goroutine may call its methods.
type Adverts struct {
	received func(Advert)
	log      *slog.Logger

	// reopening guards the fields up to closed. It is held while the kernel is asked, which may
	// take long.
	reopening  sync.Mutex
	interfaces []string
	running    sync.WaitGroup
	closed     bool

	// mu guards the rest. An advert that is sent waits for it, so it is held for a moment only.
	mu       sync.Mutex
	sockets  map[advertLink]*advertSocket
	failures map[advertLink]error
}

// advertLink is an interface and a family.
type advertLink struct {
	name string
	v4   bool
}

// NewAdverts returns Adverts without interfaces. It calls received with each packet, from several
// goroutines.
func NewAdverts(received func(Advert), log *slog.Logger) *Adverts {
	return &Adverts{received: received, log: log}
}

// Follow sets the interfaces. A missing interface is followed once it appears.
func (x *Adverts) Follow(interfaces []string) {
	x.reopening.Lock()
	defer x.reopening.Unlock()
	x.interfaces = slices.Clone(interfaces)
	x.reopen()
}

// Failure returns why an existing interface has no socket of a family; nil means it has one.
func (x *Adverts) Failure(on string, v4 bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failures[advertLink{on, v4}]
}

// reopen opens the sockets that are missing, and replaces the sockets of interfaces that have
// another index: such an interface was renamed or created again, and the group was left with its
// predecessor. If the interfaces can't be listed, nothing changes.
func (x *Adverts) reopen() {
	all, err := net.Interfaces()
	if err != nil {
		x.log.Warn("listing the interfaces of VRRP", "err", err)
	}
	if err != nil || x.closed {
		return
	}
	before, sockets, failures := x.sockets, map[advertLink]*advertSocket{}, map[advertLink]error{}
	for _, device := range all {
		if !slices.Contains(x.interfaces, device.Name) {
			continue
		}
		for _, link := range []advertLink{{device.Name, true}, {device.Name, false}} {
			if s := before[link]; s != nil && s.index == device.Index {
				sockets[link] = s
			} else if s, err := openAdverts(link, device.Index); err != nil {
				failures[link] = err
			} else {
				sockets[link] = s
				x.running.Go(func() { s.receive(x.received) })
			}
		}
	}
	x.mu.Lock()
	x.sockets, x.failures = sockets, failures
	x.mu.Unlock()
	for link, s := range before {
		if sockets[link] != s {
			_ = s.file.Close() // its interface has gone
		}
	}
}

// Run follows changes of the interfaces until ctx ends, and then closes the sockets.
func (x *Adverts) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := x.followLinks(ctx); err != nil && ctx.Err() == nil {
			x.log.Debug("following the interfaces of VRRP", "err", err)
		}
		wake.Sleep(ctx, time.Second)
	}
	x.reopening.Lock()
	x.closed = true
	for _, s := range x.sockets {
		_ = s.file.Close() // nothing is sent any longer
	}
	x.reopening.Unlock()
	x.running.Wait()
}

// followLinks reopens sockets at each change of an interface until ctx ends or the subscription
// fails. It starts by reopening, because earlier changes are lost.
func (x *Adverts) followLinks(ctx context.Context) error {
	const room = 1 << 20 // the kernel reports it if events do not fit
	s, err := nlsock.Subscribe(unix.NETLINK_ROUTE, room, unix.RTNLGRP_LINK)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Now()) })()
	for {
		x.reopening.Lock()
		x.reopen()
		x.reopening.Unlock()
		if _, err := s.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return errors.Join(fmt.Errorf("reading events: %w", err), s.Close())
		}
	}
}

// Send sends a packet from one of the host's addresses to the group or to a peer. It never waits.
// The source is set for each packet. Otherwise the kernel would choose it, perhaps a VIP, which
// peers treat as another router.
func (x *Adverts) Send(on string, from, to netip.Addr, data []byte) error {
	x.mu.Lock()
	s := x.sockets[advertLink{on, from.Is4()}]
	x.mu.Unlock()
	err := error(unix.ENODEV)
	if s != nil {
		err = s.send(from, to, data)
	}
	if err != nil {
		return fmt.Errorf("sending an advert from %s to %s on %s: %w", from, to, on, err)
	}
	return nil
}
