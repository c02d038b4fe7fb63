package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// Bystander implements dataplane.Host for a vipd that must not change the host: it adds no address and writes no rule, and
// says which VIPs are not local. Its methods may be called by any goroutine.
type Bystander struct {
	dataplane.NoHost
	why  string
	seen atomic.Pointer[seen]
}

var _ dataplane.Host = (*Bystander)(nil)

// seen is what the last Prepare found.
type seen struct {
	held   []Held
	wanted snap.Map[balancer.Key, *balancer.Frontend]
}

// NewBystander returns a Bystander. Why is the note on VIPs that are not local: the reason, and what to do.
func NewBystander(why string) *Bystander {
	b := &Bystander{why: why}
	b.seen.Store(&seen{})
	return b
}

// Inherited reports whether an earlier process has left addresses: this one takes nothing over.
func (b *Bystander) Inherited() bool { return false }

// Close does nothing.
func (b *Bystander) Close() error { return nil }

// Release does nothing.
func (b *Bystander) Release(context.Context) error { return nil }

// Refuse does nothing.
func (b *Bystander) Refuse(context.Context) error { return nil }

// Prepare looks which VIPs are local.
func (b *Bystander) Prepare(_ context.Context, want balancer.Desired) error {
	local, err := interfaceAddrs()
	if err != nil {
		return err
	}
	p := &seen{wanted: want.Frontends}
	for a := range want.Addresses.Keys() {
		held := Held{Addr: a, Where: onHost}
		if !a.IsLoopback() && !slices.Contains(local, a) {
			held = Held{Addr: a, Where: nowhere, Note: b.why}
		}
		p.held = append(p.held, held)
	}
	b.seen.Store(p)
	return nil
}

// SetMode does nothing.
func (b *Bystander) SetMode(dataplane.Needs) {}

// Problems says which VIPs are not local.
func (b *Bystander) Problems() []balancer.Problem {
	p := b.seen.Load()
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
func (b *Bystander) Addresses() []Held { return slices.Clone(b.seen.Load().held) }

// LocalAddresses returns the node's own addresses that node ports can be on, sorted. Their networks are not known here.
func (b *Bystander) LocalAddresses(networks []netip.Prefix) (own, networked []netip.Addr, err error) {
	own, err = interfaceAddrs()
	return slices.DeleteFunc(own, func(a netip.Addr) bool { return !usable(a) || !within(a, networks) }), nil, err
}

// Gateways finds none.
func (b *Bystander) Gateways([]netip.Addr) []netip.Addr { return nil }

// Sources returns nothing: routes are not known here.
func (b *Bystander) Sources([]netip.Addr) []netip.Addr { return nil }

// Tracked returns nothing: a Bystander holds no VIPs.
func (b *Bystander) Tracked(context.Context, map[netip.Addr]bool) (map[netip.Addr]bool, error) {
	return nil, nil
}

// FollowAddresses calls changed after each change of the host's addresses, and returns ctx's error when that ends.
func (b *Bystander) FollowAddresses(ctx context.Context, changed func()) error {
	return poll(ctx, pollInterval, interfaceAddrs, changed)
}

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
