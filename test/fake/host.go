package fake

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// Host is a dataplane.Host that holds addresses in a Kernel. It returns an error if an address is
// removed before the frontends on it.
type Host struct {
	NoHost
	kernel *Kernel
	want   map[netip.Addr]bool
}

var _ dataplane.Host = (*Host)(nil)

// NewHost returns a host over k.
func NewHost(k *Kernel) *Host { return &Host{kernel: k, want: map[netip.Addr]bool{}} }

// Prepare adds the wanted addresses.
func (h *Host) Prepare(_ context.Context, want balancer.Desired) error {
	h.kernel.mu.Lock()
	defer h.kernel.mu.Unlock()
	if h.kernel.faultLocked() {
		return fmt.Errorf("adding addresses: %w", ErrInjected)
	}
	clear(h.want)
	for a := range want.Addresses.Keys() {
		h.want[a] = true
		h.kernel.addresses[a] = true
	}
	return nil
}

// Finish removes unused addresses.
func (h *Host) Finish(_ context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	h.kernel.mu.Lock()
	defer h.kernel.mu.Unlock()
	if h.kernel.faultLocked() {
		return fmt.Errorf("removing addresses: %w", ErrInjected)
	}
	used := maps.Clone(h.want)
	for k := range applied.Keys() {
		used[k.Addr] = true
	}
	for a := range h.kernel.addresses {
		if !used[a] {
			delete(h.kernel.addresses, a)
		}
	}
	return nil
}

// Intact returns a reason if a wanted address is missing.
func (h *Host) Intact(context.Context) (string, error) {
	h.kernel.mu.Lock()
	defer h.kernel.mu.Unlock()
	for a := range h.want {
		if !h.kernel.addresses[a] {
			return fmt.Sprintf("address %s is gone", a), nil
		}
	}
	return "", nil
}
