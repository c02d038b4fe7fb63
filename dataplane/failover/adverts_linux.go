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

// protocolVRRP is the IP protocol number of VRRP.
const protocolVRRP = 112

// advertTTL is the TTL or hop limit of each sent packet. It proves to receivers that no router has
// forwarded the packet.
const advertTTL = 255

// vrrpGroup returns the multicast group of VRRP advertisements.
func vrrpGroup(v4 bool) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{224, 0, 0, 18})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 0x12})
}

// Adverts sends and receives VRRP packets. It has a raw socket for each interface and address
// family. The sockets receive multicast and unicast packets, but not this host's own multicasts.
// Its methods are safe for concurrent use.
type Adverts struct {
	received func(Advert)
	log      *slog.Logger

	// reopening guards the fields between it and mu. It is locked during requests to the kernel,
	// which may be slow, so Send must not lock it.
	reopening  sync.Mutex
	interfaces []string
	running    sync.WaitGroup
	closed     bool

	// mu guards the fields below. It is locked only briefly, because Send waits for it.
	mu       sync.Mutex
	sockets  map[advertLink]*advertSocket
	failures map[advertLink]error
}

// advertLink identifies a socket by its interface and family.
type advertLink struct {
	name string
	v4   bool
}

// NewAdverts returns Adverts without interfaces. It calls received for each packet, concurrently
// from several goroutines.
func NewAdverts(received func(Advert), log *slog.Logger) *Adverts {
	return &Adverts{received: received, log: log}
}

// Follow sets the interfaces. If an interface is missing, its sockets are opened when the interface
// appears.
func (x *Adverts) Follow(interfaces []string) {
	x.reopening.Lock()
	defer x.reopening.Unlock()
	x.interfaces = slices.Clone(interfaces)
	x.reopen()
}

// Failure returns the reason why an existing interface has no socket for an address family. It
// returns nil if the socket is open or the interface is missing.
func (x *Adverts) Failure(on string, v4 bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failures[advertLink{on, v4}]
}

// reopen opens missing sockets, and replaces the sockets of interfaces whose index has changed. An
// interface that is created again has a new index, and its multicast membership is lost. If the
// interfaces can't be listed, reopen changes nothing.
func (x *Adverts) reopen() {
	all, err := net.Interfaces()
	if err != nil {
		x.log.Warn("the interfaces for VRRP can't be listed", "err", err)
	}
	if err != nil || x.closed {
		return
	}
	before := x.sockets
	sockets := map[advertLink]*advertSocket{}
	failures := map[advertLink]error{}
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
			_ = s.file.Close() // its interface was removed
		}
	}
}

// Run follows changes to the interfaces until ctx is canceled, and then closes the sockets.
func (x *Adverts) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := x.followLinks(ctx); err != nil && ctx.Err() == nil {
			x.log.Debug("changes to the interfaces for VRRP can't be followed", "err", err)
		}
		wake.Sleep(ctx, time.Second)
	}
	x.reopening.Lock()
	x.closed = true
	for _, s := range x.sockets {
		_ = s.file.Close() // no more packets will be sent
	}
	x.reopening.Unlock()
	x.running.Wait()
}

// followLinks calls reopen at the start and after each change to an interface. It returns when ctx
// is canceled or the subscription fails.
func (x *Adverts) followLinks(ctx context.Context) error {
	const room = 1 << 20 // the kernel reports an overflow
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

// Send sends a packet from one of the host's addresses to the multicast group or to a peer. It
// never blocks. Each packet has an explicit source address. Otherwise the kernel might choose a
// VIP, which peers would treat as another router.
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
