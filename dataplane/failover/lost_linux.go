package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/nlsock"
)

// watch calls Lost when an interface may have lost addresses. When an interface has changed, it
// calls Links and notifies the announcer. It does all of this at the start, because earlier events
// are not reported. It returns when ctx is canceled.
func (k *Kernel) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := k.departures(ctx); err != nil && ctx.Err() == nil {
			k.o.Log.Debug("the host's addresses can't be followed", "err", err)
		}
		wake.Sleep(ctx, time.Second)
	}
}

// departures does the work of watch until the subscription fails or ctx is canceled.
func (k *Kernel) departures(ctx context.Context) error {
	const room = 1 << 20 // the kernel reports an overflow
	s, err := nlsock.Subscribe(unix.NETLINK_ROUTE, room, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_LINK)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Now()) })()
	for gone, changed := true, true; ; {
		if gone {
			k.o.Lost()
		}
		if changed {
			k.announcer.links.Send()
			k.o.Links()
		}
		gone, changed = false, false
		m, err := s.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			gone, changed = true, true
		case err != nil:
			return errors.Join(fmt.Errorf("reading events: %w", err), s.Close())
		}
		for m.Next() {
			gone = gone || m.Kind == unix.RTM_DELADDR
			changed = changed || m.Kind == unix.RTM_NEWLINK || m.Kind == unix.RTM_DELLINK
		}
	}
}

// Lost returns the bound VIPs that are missing from their interfaces. Another program or the kernel
// may have removed them, because an interface loses its IPv6 addresses when it is taken down.
func (k *Kernel) Lost() (vips []netip.Addr) {
	held, err := Held()
	if err != nil {
		return nil // the next call will return the VIPs
	}
	for name, all := range byDevice(k.o.Devices, k.announcer.All()) {
		link, err := net.InterfaceByName(name)
		if err != nil {
			continue // the VIPs were removed with the interface
		}
		present := map[netip.Addr]bool{}
		for _, p := range held[link.Index] {
			present[p.Addr()] = true
		}
		for _, a := range all {
			if !present[a] {
				vips = append(vips, a)
			}
		}
	}
	return vips
}
