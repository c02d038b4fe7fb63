package direct

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nlsock"
)

// network reads this host's devices and routes, and detects changes to them.
type network struct {
	nl     *netlink.Handle
	events *nlsock.Socket
	// moved reports whether devices or routes may have changed since the table was adapted.
	moved bool
}

// eventRoom is the size of the buffer for events. It is small because one event has the same effect
// as many. The kernel drops additional events, for example when a router learns a million routes.
const eventRoom = 32 << 10

func openNetwork() (*network, error) {
	nl, err := netlink.NewHandle()
	if err != nil {
		return nil, err
	}
	events, err := nlsock.Subscribe(unix.NETLINK_ROUTE, eventRoom, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP)
	if err != nil {
		nl.Close()
		return nil, err
	}
	events.Drain()
	return &network{nl: nl, events: events, moved: true}, nil
}

func (n *network) close() error {
	n.nl.Close()
	return n.events.Close()
}

// hasMoved reports whether devices, addresses, routes or rules may have changed since moved was
// reset. Without events, it costs one system call.
func (n *network) hasMoved() (bool, error) {
	for {
		switch _, err := n.events.Receive(); {
		case errors.Is(err, unix.EAGAIN):
			return n.moved, nil
		case err != nil && !errors.Is(err, unix.ENOBUFS): // ENOBUFS means that the kernel dropped events
			return true, fmt.Errorf("reading events of devices and routes: %w", err)
		}
		n.moved = true
	}
}

func (n *network) isOwn(a netip.Addr) bool {
	routes, err := n.nl.RouteGet(a.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// Follow adapts the table to changed devices and routes, ends drains, and retries a failed change
// to the table.
func (t *Table) Follow(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.fronts) == 0 && !t.unreported {
		return nil
	}
	changed, now := map[balancer.Key]*front{}, time.Now()
	touched := map[netip.Addr]bool{}
	for k, f := range t.fronts {
		if f.frontend == nil || !f.ended(now) {
			continue
		}
		changed[k] = newFront(f.frontend, f, now)
		if k.Proto == balancer.UDP {
			t.noteDatagrams(dataplane.Change{Key: k, New: f.frontend}, changed[k])
			touched[k.Addr] = true
		}
	}
	t.changeFragments(touched, changed)
	moved, err := t.network.hasMoved()
	if err == nil && !moved && t.sound && !t.unreported && len(changed) == 0 && len(t.found) == 0 {
		return nil
	}
	return errors.Join(err, t.reconcile(ctx, changed))
}
