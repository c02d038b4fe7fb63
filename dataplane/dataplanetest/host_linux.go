package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/dataplane/host"
)

// plainHost adds VIPs to lo, and does nothing else. It knows its own by their place: whatever is on lo and is no
// loopback address.
type plainHost struct {
	dataplane.NoHost
	lo   netlink.Link
	want snap.Map[netip.Addr, int] // of the last Prepare
}

func newPlainHost(t testing.TB) dataplane.Host {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	return &plainHost{lo: lo}
}

// Prepare adds the addresses that the host does not have.
func (h *plainHost) Prepare(ctx context.Context, want balancer.Desired) error {
	h.want = want.Addresses
	local, err := localAddrs()
	if err != nil {
		return err
	}
	for vip := range want.Addresses.Keys() {
		if local[vip] {
			continue
		}
		if err := netlink.AddrAdd(h.lo, whole(vip)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("adding address %s: %w", vip, err)
		}
		if err := awaitRoute(ctx, vip); err != nil {
			return err
		}
	}
	return nil
}

// awaitRoute waits until packets to an added address are taken for this host. The kernel inserts the route of an IPv6
// address some time after the address itself, which can be bound to already.
func awaitRoute(ctx context.Context, vip netip.Addr) error {
	for {
		routes, err := netlink.RouteGet(vip.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the route of %s: %w", vip, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// Finish removes the addresses that are not wanted, and that no frontend needs.
func (h *plainHost) Finish(_ context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	needed := map[netip.Addr]bool{}
	for k := range applied.Keys() {
		needed[k.Addr] = true
	}
	held, err := netlink.AddrList(h.lo, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range held {
		vip, _ := netip.AddrFromSlice(a.IP)
		if vip = vip.Unmap(); vip.IsLoopback() || needed[vip] || h.want.Has(vip) {
			continue
		}
		if err := netlink.AddrDel(h.lo, whole(vip)); err != nil {
			return fmt.Errorf("removing address %s: %w", vip, err)
		}
	}
	return nil
}

// localAddrs are all that this host has.
func localAddrs() (map[netip.Addr]bool, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	local := map[netip.Addr]bool{}
	for _, held := range all {
		if p, err := netip.ParsePrefix(held.String()); err == nil {
			local[p.Addr()] = true
		}
	}
	return local, nil
}

// whole is the address alone, /32 or /128, usable at once.
func whole(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// GuardedHost is the host as vipd keeps it with these options, until the test ends.
func GuardedHost(t testing.TB, o host.Options) dataplane.Host {
	t.Helper()
	h, err := host.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Release(context.Background()); err != nil {
			t.Errorf("releasing the host: %v", err)
		}
		if err := h.Close(); err != nil {
			t.Errorf("closing the host: %v", err)
		}
	})
	return h
}
