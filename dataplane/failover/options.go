package failover

import (
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// KernelOptions configure a Kernel. Its functions must not block.
type KernelOptions struct {
	// Gate is the time for which the gate stays open after a refresh; 0 means the default.
	Gate time.Duration
	Places
	// VIPs has all VIPs with one owner, including VIPs without an interface here. The first Close
	// removes them from this host.
	VIPs []netip.Addr
	// AnnounceEvery is the interval of repeated announcements; 0 means only after changes.
	AnnounceEvery time.Duration
	// Rival is called, at most once a second for each VIP, if another host claims a VIP of this
	// host.
	Rival func(Rival)
	// Gone is called if an address may have left an interface: Lost lists such VIPs.
	Gone func()
	// Links is called if an interface may have changed.
	Links func()
	// Reached is called if one of the hosts answers that must be within reach on an interface, with
	// all of them.
	Reached func(on string, hosts []netip.Addr)
	Log     *slog.Logger
}

// Rival is another host on a link that claims a VIP.
type Rival struct {
	VIP netip.Addr
	MAC net.HardwareAddr
}

// Advert is a received packet of VRRP.
type Advert struct {
	// On is the interface, From and To are the addresses of the IP header, and TTL is its TTL or
	// hop limit.
	On       string
	From, To netip.Addr
	TTL      int
	// At is the time when the kernel received it. The time of day may have been set since.
	At time.Time
	// Data is the message after the IP header.
	Data []byte
}
