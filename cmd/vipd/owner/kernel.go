package owner

import (
	"context"
	"net"
	"net/netip"
	"time"

	onhost "vipd/dataplane/failover"
)

// Kernel is the part of the host's kernel that the owner changes. One goroutine calls its methods,
// unless a method says otherwise.
type Kernel interface {
	// Close closes the gate, so no refresh opens it, and then removes every VIP.
	Close() error
	// Open opens the gate.
	Open() error
	// Refresh keeps an open gate open, and leaves a closed gate unchanged. It never waits. Any
	// goroutine may call it.
	Refresh()
	// Cover changes the VIPs, and the devices that may have them. Bound VIPs are among them.
	Cover(onhost.Places) error
	// Bind adds addresses, and announces them until they are unbound. It returns an error for each
	// that could not be added.
	Bind([]netip.Addr) map[netip.Addr]error
	Unbind([]netip.Addr) error
	// Lost returns the VIPs that Bind has added and that are now missing.
	Lost() []netip.Addr
	// Probe asks whether other hosts have VIPs, and returns the MACs of those that answer within a
	// time; 0 means the usual time. Any goroutine may call it.
	Probe(ctx context.Context, vips []netip.Addr, within time.Duration) (map[netip.Addr]net.HardwareAddr, error)
	// Announced counts the announcements of addresses. Any goroutine may call it.
	Announced() uint64
	// Intact describes a foreign change of the gate, or returns "".
	Intact() (string, error)
	// Run announces and listens until ctx ends. Any goroutine may call it.
	Run(ctx context.Context)
	// End leaves a closed gate. No method is called after it.
	End() error
}
