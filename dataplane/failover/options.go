package failover

import (
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// KernelOptions configures a Kernel. The functions must not block.
type KernelOptions struct {
	// Gate is how long the gate stays open after a refresh. Zero selects the default.
	Gate time.Duration
	Places
	// VIPs lists all VIPs that have one owner, including those without an interface on this host.
	// The first Close removes them from this host.
	VIPs []netip.Addr
	// AnnounceEvery is the interval at which VIPs are announced again. Zero means that VIPs are
	// announced only after changes.
	AnnounceEvery time.Duration
	// Rival is called when another host claims a VIP of this host, at most once a second for each
	// VIP.
	Rival func(Rival)
	// Lost is called when an address may have been removed from an interface. [Kernel.Lost] returns
	// the missing VIPs.
	Lost func()
	// Links is called when an interface may have changed.
	Links func()
	// Reached is called when a host in Places.Reach answers on its interface. hosts lists all hosts
	// in the interface's entry.
	Reached func(on string, hosts []netip.Addr)
	Log     *slog.Logger
}

// Rival is another host on a link that claims a VIP.
type Rival struct {
	VIP netip.Addr
	MAC net.HardwareAddr
}

// Advert is a received VRRP packet.
type Advert struct {
	// On is the interface. From, To and TTL are the addresses and the TTL or hop limit in the IP
	// header.
	On       string
	From, To netip.Addr
	TTL      int
	// At is the time when the kernel received the packet. The system clock may have been set since.
	At time.Time
	// Data is the message that follows the IP header.
	Data []byte
}
