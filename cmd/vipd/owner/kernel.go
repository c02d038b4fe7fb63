package owner

import (
	"context"
	"net"
	"net/netip"
	"time"

	onhost "vipd/dataplane/failover"
)

// Kernel represents the kernel state that the owner changes. Its methods must be called by one
// goroutine, unless a method says otherwise.
type Kernel interface {
	// Close closes the gate, so a refresh can't reopen it, and then removes every VIP.
	Close() error
	// Open opens the gate.
	Open() error
	// Refresh extends the timeout of an open gate, and leaves a closed gate closed. It never
	// blocks. It is safe for concurrent use.
	Refresh()
	// Cover sets the VIPs that the gate covers, and the devices that may have them. The VIPs must
	// include all bound VIPs.
	Cover(onhost.Places) error
	// Bind adds addresses, and announces them until they are unbound. It returns an error for each
	// address that could not be added.
	Bind([]netip.Addr) map[netip.Addr]error
	Unbind([]netip.Addr) error
	// Lost returns the VIPs that Bind has added and that are now missing.
	Lost() []netip.Addr
	// Probe asks whether other hosts have VIPs. It returns the MAC addresses of the hosts that
	// answer within the duration within. If within is 0, the default applies. It is safe for
	// concurrent use.
	Probe(ctx context.Context, vips []netip.Addr, within time.Duration) (map[netip.Addr]net.HardwareAddr, error)
	// Announced returns how many announcements were sent. It is safe for concurrent use.
	Announced() uint64
	// Intact describes how another program has changed the gate, or returns "" if no program has.
	Intact() (string, error)
	// Run announces VIPs and listens for other hosts until ctx is done. It is safe for concurrent
	// use.
	Run(ctx context.Context)
	// End closes the sockets and leaves the gate closed. No method may be called after End.
	End() error
}
