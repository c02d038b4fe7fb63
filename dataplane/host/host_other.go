//go:build !linux

package host

import (
	"context"
	"errors"
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

// Host implements [dataplane.Host] on systems where vipd must not change the host. It does not add
// addresses or rules, and reports VIPs that are not local. Its methods are safe for concurrent use.
type Host struct {
	seen atomic.Pointer[seen]
}

// reason is the note on VIPs that are not local.
const reason = "vipd can't add addresses on " + runtime.GOOS + ": add it yourself, or use VIPs in 127.0.0.0/8"

// New returns a Host that holds nothing.
func New(Options) (*Host, error) {
	h := &Host{}
	h.seen.Store(&seen{})
	return h, nil
}

var _ dataplane.Host = (*Host)(nil)

// seen holds the results of the last Prepare.
type seen struct {
	held   []Held
	wanted snap.Map[balancer.Key, *balancer.Frontend]
}

// Inherited returns false, because an earlier process can't have left addresses.
func (h *Host) Inherited() bool { return false }

// Close does nothing.
func (h *Host) Close() error { return nil }

// Release does nothing.
func (h *Host) Release(context.Context) error { return nil }

// Refuse does nothing.
func (h *Host) Refuse(context.Context) error { return nil }

// Prepare determines which VIPs are local.
func (h *Host) Prepare(_ context.Context, want balancer.Desired) error {
	local, err := interfaceAddrs()
	if err != nil {
		return err
	}
	p := &seen{wanted: want.Frontends}
	for a := range want.Addresses.Keys() {
		held := Held{Addr: a, Where: onHost}
		if !a.IsLoopback() && !slices.Contains(local, a) {
			held = Held{Addr: a, Where: nowhere, Note: reason}
		}
		p.held = append(p.held, held)
	}
	h.seen.Store(p)
	return nil
}

// Finish does nothing.
func (h *Host) Finish(context.Context, snap.Map[balancer.Key, *balancer.Frontend]) error { return nil }

// Intact returns "", because this Host creates no objects.
func (h *Host) Intact(context.Context) (string, error) { return "", nil }

// Resync does nothing.
func (h *Host) Resync(bool) {}

// Repaired returns nil.
func (h *Host) Repaired() []string { return nil }

// Alerts does nothing.
func (h *Host) Alerts(context.Context, func()) {}

// Ready returns nil, because every change can be applied.
func (h *Host) Ready(dataplane.Change, bool) error { return nil }

// SetMode does nothing.
func (h *Host) SetMode(dataplane.Needs) {}

// Problems returns a problem for each VIP that is not local.
func (h *Host) Problems() []balancer.Problem {
	p := h.seen.Load()
	var out []balancer.Problem
	for _, held := range p.held {
		if held.Where != nowhere || leaves(held, p.wanted) {
			continue
		}
		out = append(out, notLocal(held, p.wanted))
	}
	return out
}

// Addresses returns the holders of VIPs in use.
func (h *Host) Addresses() []Held { return slices.Clone(h.seen.Load().held) }

// LocalAddresses returns the node's own addresses that can serve node ports, sorted. The networks
// of addresses are unknown on these systems.
func (h *Host) LocalAddresses(networks []netip.Prefix) (own, networked []netip.Addr, err error) {
	own, err = interfaceAddrs()
	return slices.DeleteFunc(own, func(a netip.Addr) bool { return !usable(a) || !within(a, networks) }), nil, err
}

// Gateways returns nil.
func (h *Host) Gateways([]netip.Addr) []netip.Addr { return nil }

// Sources returns nil, because routes are unknown on these systems.
func (h *Host) Sources([]netip.Addr) []netip.Addr { return nil }

// Tracked returns nil, because this Host holds no VIPs.
func (h *Host) Tracked(context.Context, map[netip.Addr]bool) (map[netip.Addr]bool, error) {
	return nil, nil
}

// FollowAddresses calls changed after each change to the host's addresses. When ctx is done, it
// returns ctx's error.
func (h *Host) FollowAddresses(ctx context.Context, changed func()) error {
	return poll(ctx, pollInterval, interfaceAddrs, changed)
}

// interfaceAddrs returns all of the host's addresses, sorted.
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

// HoldDirect returns an error, because vipd adds no addresses on these systems.
func HoldDirect(Options, []netip.Addr) ([]string, []balancer.Problem, error) {
	return nil, nil, errors.New("vipd can't add addresses on " + runtime.GOOS)
}

// ReleaseDirect does nothing.
func ReleaseDirect(Options, []netip.Addr, bool) ([]string, error) { return nil, nil }

// Cleanup does nothing.
func Cleanup(context.Context, Options, bool) ([]string, error) { return nil, nil }

// InLedger returns nil.
func InLedger(string) (map[netip.Addr]string, error) { return nil, nil }

// RouteTo reports only loopback addresses as local.
func RouteTo(a netip.Addr) (Route, error) { return Route{Local: a.IsLoopback()}, nil }

// Unforwarded returns "", because no mode forwards on these systems.
func Unforwarded(netip.Addr, Route) string { return "" }

// NeighborAt returns an unknown neighbor.
func NeighborAt(netip.Addr) (Neighbor, error) { return Neighbor{}, nil }

// AnswersARP returns "", because vipd holds no addresses on these systems.
func AnswersARP(netip.Addr) string { return "" }

// BridgeFilter returns "", because no mode forwards on these systems.
func BridgeFilter(netip.Addr, Route) (device, sysctl string) { return "", "" }
