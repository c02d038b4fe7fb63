//go:build !linux

package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// Host implements dataplane.Host where vipd holds no addresses: it says which VIPs are not local.
type Host struct {
	public atomic.Pointer[public]
}

var _ dataplane.Host = (*Host)(nil)

// public is what other goroutines may see.
type public struct {
	held   []Held
	wanted snap.Map[balancer.Key, *balancer.Frontend]
}

// New returns a Host that holds nothing.
func New(Options) (*Host, error) {
	h := &Host{}
	h.public.Store(&public{})
	return h, nil
}

// Inherited reports whether an earlier process has left addresses: none does here.
func (h *Host) Inherited() bool { return false }

// Close does nothing.
func (h *Host) Close() error { return nil }

// Release does nothing.
func (h *Host) Release(context.Context) error { return nil }

// Refuse does nothing.
func (h *Host) Refuse(context.Context) error { return nil }

// Prepare looks which VIPs are local.
func (h *Host) Prepare(_ context.Context, want balancer.Desired) error {
	local, err := interfaceAddrs()
	if err != nil {
		return err
	}
	p := &public{wanted: want.Frontends}
	for a := range want.Addresses.Keys() {
		held := Held{Addr: a, Where: onHost}
		if !a.IsLoopback() && !slices.Contains(local, a) {
			held = Held{a, nowhere, "vipd adds no addresses on " + runtime.GOOS + ": add it, or use VIPs in 127.0.0.0/8"}
		}
		p.held = append(p.held, held)
	}
	h.public.Store(p)
	return nil
}

// Finish does nothing.
func (h *Host) Finish(context.Context, snap.Map[balancer.Key, *balancer.Frontend]) error { return nil }

// Intact finds nothing missing.
func (h *Host) Intact(context.Context) (string, error) { return "", nil }

// Resync does nothing.
func (h *Host) Resync() {}

// SetMode does nothing.
func (h *Host) SetMode(Mode) {}

// Problems says which VIPs are not local.
func (h *Host) Problems() []balancer.Problem {
	p := h.public.Load()
	var out []balancer.Problem
	for _, held := range p.held {
		if held.Where != nowhere {
			continue
		}
		out = append(out, notLocal(held, p.wanted))
	}
	return out
}

// Addresses says of every VIP in use who holds it.
func (h *Host) Addresses() []Held { return slices.Clone(h.public.Load().held) }

// LocalAddresses returns the node's own addresses that node ports can be on, sorted.
func (h *Host) LocalAddresses(networks []netip.Prefix) ([]netip.Addr, error) {
	own, err := interfaceAddrs()
	return slices.DeleteFunc(own, func(a netip.Addr) bool { return !usable(a) || !within(a, networks) }), err
}

// Gateways finds none.
func (h *Host) Gateways([]netip.Addr) []netip.Addr { return nil }

// FollowAddresses calls changed after each change of the host's addresses, and returns ctx's error when that ends.
func (h *Host) FollowAddresses(ctx context.Context, changed func()) error {
	return poll(ctx, pollInterval, interfaceAddrs, changed)
}

// Cleanup has nothing to remove.
func Cleanup(context.Context, Options, bool) ([]string, error) { return nil, nil }

// interfaceAddrs returns all addresses of the host, sorted.
func interfaceAddrs() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}
