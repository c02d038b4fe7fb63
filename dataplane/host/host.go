package host

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	"vipd/dataplane/internal/xtables"
)

// ErrUnsettled matches an error of LocalAddresses (errors.Is) if addresses changed during each
// attempt to list them. FollowAddresses reports the last of these changes.
var ErrUnsettled = errors.New("this host's addresses change too quickly to be listed")

// Options configures a Host.
type Options struct {
	// Interface is the device that holds VIPs. If its name starts with "vipd", vipd creates it as a
	// dummy device; any other device must already exist.
	Interface string
	// Bind reports whether vipd adds VIPs that are not local. If false, another program must add
	// them.
	Bind bool
	// StrictARP reports whether the host ignores ARP requests for VIPs that it holds on vipd0 or
	// lo.
	StrictARP bool
	// ManageSysctls reports whether vipd sets the sysctls that it needs. If false, vipd only
	// reports their values.
	ManageSysctls bool
	// RunDir is the folder that contains the ledger.
	RunDir string
	// ForeignServers reports whether other programs have virtual servers in the kernel. If so, vipd
	// does not change the sysctls that affect them. It is called only while such a sysctl needs a
	// change. If nil, vipd assumes that there are none.
	ForeignServers func() bool
	// Mode holds the mode's requirements for the guard and the sysctls. [Host.SetMode] replaces
	// them.
	Mode dataplane.Needs
	// MasqueradeBit is the bit of connection marks, 0 to 31, that requests masquerading. The next
	// bit marks connections through vipd, and the bit after it marks connections that keep their
	// source. Bit 0 follows bit 31.
	MasqueradeBit int
	// ClampMSS reports whether the segment size of connections is always limited to their path MTU.
	// If false, it is limited only while links or routes have different MTUs.
	ClampMSS bool
	// FastPath holds the names of the devices between which established connections skip netfilter
	// and routing, or only [guard.FastPathAuto]. FastPathHardware reports whether the devices'
	// hardware forwards these connections.
	FastPath         []string
	FastPathHardware bool
	// Variant is the iptables variant whose filters must accept vipd's connections.
	Variant xtables.Variant
	// Log receives each change at level Debug. If nil, nothing is logged.
	Log *slog.Logger
}

// Guard returns the guard's options.
func (o Options) Guard() guard.Options {
	return guard.Options{
		Mode: o.Mode, MasqueradeBit: o.MasqueradeBit, ClampMSS: o.ClampMSS, FastPath: o.FastPath, FastPathHardware: o.FastPathHardware,
		Variant: o.Variant, Log: o.Log,
	}
}

// DefaultOptions returns the defaults of the configuration.
func DefaultOptions() Options {
	return Options{
		Interface: "vipd0", Bind: true, StrictARP: true, ManageSysctls: true, RunDir: "/run/vipd", MasqueradeBit: 14, Variant: xtables.Auto,
	}
}

// withDefaults returns o with defaults for empty fields.
func (o Options) withDefaults() Options {
	d := DefaultOptions()
	o.Interface = cmp.Or(o.Interface, d.Interface)
	o.RunDir = cmp.Or(o.RunDir, d.RunDir)
	o.Variant = cmp.Or(o.Variant, d.Variant)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// Held is the holder of a VIP.
type Held struct {
	Addr netip.Addr `json:"address"`
	// Where is the device to which vipd added the address, "host" if the host has it independently,
	// or "none".
	Where string `json:"where"`
	// Note explains the value of Where, such as the reason why the address is not held. It may be
	// empty.
	Note string `json:"note,omitempty"`
	// Standing is "owned" for a VIP that only one host, its owner, adds at a time. For any other
	// VIP, it is the reason why this host does not hold the VIP for now, or "".
	Standing balancer.VIPState `json:"standing,omitempty"`
	// Silent reports whether the address is on lo because this host is a direct-routing real
	// server. The host then answers no ARP requests for it, and vipd serves nothing at it.
	Silent bool `json:"silent,omitempty"`
}

// These are the values of Held.Where other than device names.
const (
	onHost  = "host"
	nowhere = "none"
)

// leaves reports whether a VIP has no wanted frontend and this host does not hold it. Such a VIP
// has no connections to wait for, so vipd no longer lists or reports it.
func leaves(held Held, wanted snap.Map[balancer.Key, *balancer.Frontend]) bool {
	for range balancer.FrontendsOn(wanted, held.Addr) {
		return false
	}
	return held.Where == nowhere
}

// notLocal returns the problem that this host does not hold a wanted VIP.
func notLocal(held Held, wanted snap.Map[balancer.Key, *balancer.Frontend]) balancer.Problem {
	p := balancer.Problem{Severity: balancer.SeverityError, Field: "vips", Text: fmt.Sprintf("%s is not local: %s", held.Addr, held.Note)}
	for _, f := range balancer.FrontendsOn(wanted, held.Addr) {
		p.Service = f.Service
		break
	}
	return p
}

// Broadcast returns the broadcast address of an IPv4 network, and false if the network has none.
func Broadcast(network netip.Prefix) (netip.Addr, bool) {
	if !network.Addr().Is4() || network.Bits() > 30 {
		return netip.Addr{}, false
	}
	last := network.Addr().As4()
	for i := network.Bits(); i < 32; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(last), true
}

// Route is the host's route to an address.
type Route struct {
	// Local reports whether the address belongs to the host. Index is the index of the outgoing
	// interface.
	Local bool
	Index int
}

// Neighbor describes a host on one of this host's links.
type Neighbor struct {
	// Device is the link's device. It is empty if this host itself has the address, or reaches it
	// through a router.
	Device string
	// MAC is empty if it is unknown.
	MAC string
	// Silent reports whether the neighbor did not answer the last requests for its MAC address.
	Silent bool
	// Addr is the neighbor's IP address.
	Addr netip.Addr
}

// Protocol returns the protocol in which the neighbor must answer.
func (n Neighbor) Protocol() string {
	if n.Addr.Is4() {
		return "ARP"
	}
	return "neighbor discovery"
}

// Variant is an iptables variant: nft, legacy, or auto. With auto, vipd uses the variant of the
// host's other rules.
type Variant = xtables.Variant

// usable reports whether a local address can serve node ports.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified()
}

// within reports whether a is in one of the networks, or networks is empty.
func within(a netip.Addr, networks []netip.Prefix) bool {
	return len(networks) == 0 || slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}
