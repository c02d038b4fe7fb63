package owner

import (
	"context"
	"net"
	"net/netip"

	onhost "vipd/dataplane/failover"
)

// Kernel is the part of the host's kernel that the owner changes. One goroutine calls its methods,
// unless a method says otherwise.
type Kernel interface {
	// Close closes the gate, so no refresh opens it, and then removes every VIP.
	Close() error
	// Open opens the gate.
	Open() error
	// Refresh keeps an open gate open, and leaves a closed one as it is. It never waits. Any
	// goroutine may call it.
	Refresh()
	// Cover changes the VIPs, and the devices where they may be. Bound VIPs are among them.
	Cover(onhost.Places) error
	// Bind adds addresses, and announces them until they are unbound. It returns an error for each
	// that could not be added.
	Bind([]netip.Addr) map[netip.Addr]error
	Unbind([]netip.Addr) error
	// Lost are the VIPs that Bind has added and that are missing now.
	Lost() []netip.Addr
	// Probe asks whether other hosts have VIPs, and returns their MACs. Any goroutine may call it.
	Probe(ctx context.Context, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error)
	// Announced counts the announcements of addresses. Any goroutine may call it.
	Announced() uint64
	// Intact returns what another program has changed of the gate; "" means nothing.
	Intact() (string, error)
	// Run announces and listens until ctx ends. Any goroutine may call it.
	Run(ctx context.Context)
	// End leaves a closed gate behind. No method is called after it.
	End() error
}
