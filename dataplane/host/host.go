package host

import (
	"cmp"
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

// Options are the parts of the configuration that concern the host.
type Options struct {
	// Interface is the device that holds VIPs. One whose name begins with "vipd" is a dummy device that vipd makes; any
	// other has to exist.
	Interface string
	// Bind: add VIPs that are not local. Without it another program owns the addresses, and they are used as they come.
	Bind bool
	// StrictARP: while VIPs are held on vipd0 or lo, answer no ARP request for them.
	StrictARP bool
	// ManageSysctls: set the sysctls that are needed; without it their values are only reported.
	ManageSysctls bool
	// RunDir is the folder of the ledger.
	RunDir string
	// ForeignServers reports whether the kernel has virtual servers that are not vipd's: then sysctls that change what
	// they do are left alone. It is asked only while such a sysctl is not as it should be; nil means there are none.
	ForeignServers func() bool
	// Mode is what the guard and the sysctls depend on of the mode in use. SetMode changes it.
	Mode dataplane.Needs
	// MasqueradeBit is the bit, 0 to 31, of packets' marks that stands for masquerading. The next bit of connections'
	// marks says that vipd knows them, and the one after that they keep their source; after 31 comes 0.
	MasqueradeBit int
	// Variant is the variant of iptables whose filters have to accept our connections.
	Variant xtables.Variant
	// Log gets each change at Debug level; nil means nothing is logged.
	Log *slog.Logger
}

// Guard are the options of the guard among these.
func (o Options) Guard() guard.Options {
	return guard.Options{Mode: o.Mode, MasqueradeBit: o.MasqueradeBit, Variant: o.Variant, Log: o.Log}
}

// DefaultOptions returns the defaults of the configuration.
func DefaultOptions() Options {
	return Options{
		Interface: "vipd0", Bind: true, StrictARP: true, ManageSysctls: true, RunDir: "/run/vipd", MasqueradeBit: 14, Variant: xtables.Auto,
	}
}

// withDefaults fills in what is empty.
func (o Options) withDefaults() Options {
	d := DefaultOptions()
	o.Interface, o.RunDir, o.Variant = cmp.Or(o.Interface, d.Interface), cmp.Or(o.RunDir, d.RunDir), cmp.Or(o.Variant, d.Variant)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// Held says who holds one VIP.
type Held struct {
	Addr netip.Addr `json:"address"`
	// Where is the device to which vipd added it, "host" where the host has it anyway, or "none".
	Where string `json:"where"`
	// Note is what there is to add in words, such as why it is not held; often "".
	Note string `json:"note,omitempty"`
	// Standing says why a VIP with settings is nowhere, or that it is here as its owner; "" for all others.
	Standing balancer.VIPState `json:"standing,omitempty"`
}

// The values of Held.Where that are no devices.
const (
	onHost  = "host"
	nowhere = "none"
)

// notLocal is the problem with a wanted VIP that this host does not hold.
func notLocal(held Held, wanted snap.Map[balancer.Key, *balancer.Frontend]) balancer.Problem {
	p := balancer.Problem{Severity: balancer.SeverityError, Field: "vips", Text: fmt.Sprintf("%s is not local: %s", held.Addr, held.Note)}
	for _, f := range balancer.FrontendsOn(wanted, held.Addr) {
		p.Service = f.Service
		break
	}
	return p
}

// Route is how this host reaches an address.
type Route struct {
	// Local: it is the host's own. Index is the number of the interface that leads to it.
	Local bool
	Index int
}

// Variant is a variant of iptables: auto (what the host's other rules use), nft or legacy.
type Variant = xtables.Variant

// usable reports whether a local address can be a node's own for node ports.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified()
}

// within reports whether a is in one of the networks; no networks: all addresses are.
func within(a netip.Addr, networks []netip.Prefix) bool {
	return len(networks) == 0 || slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}
