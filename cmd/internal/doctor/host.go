package doctor

import (
	"cmp"
	"context"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane/host"
)

// Frontend is a service's address and port, with the details that checks need.
type Frontend struct {
	balancer.Key
	NodePort bool
	Service  balancer.Name
	// Scheduler is the scheduler that the mode in use applies, or "" if it is unknown.
	Scheduler balancer.Scheduler
	// Backends are the frontend's endpoints, each with its first port. Direct holds the addresses
	// to which packets are forwarded unchanged, by direct routing.
	Backends []netip.AddrPort
	Direct   []netip.Addr
	// FromClients reports whether vipd connects to endpoints from the clients' addresses.
	FromClients bool
	// Idle is the reason why none of the frontend's endpoints gets new connections, or "" if one
	// does.
	Idle string
}

// FrontendOf returns the part of a compiled frontend that checks need.
func FrontendOf(f *balancer.Frontend) Frontend {
	frontend := Frontend{Key: f.Key, NodePort: f.NodePort, Service: f.Service, Scheduler: f.Scheduler, FromClients: f.Source == balancer.ClientSource}
	var states []balancer.BackendState
	for _, b := range f.Backends {
		frontend.Backends, states = append(frontend.Backends, b.Addr), append(states, b.State)
		frontend.AddDirect(f.Forward, b.Addr, b.State)
	}
	frontend.Idle = Idle(states)
	return frontend
}

// portsOf returns the address and ports of an endpoint, which serves as many ports as the frontend.
func (f *Frontend) portsOf(b netip.AddrPort) balancer.Key {
	last := min(int(b.Port())+f.Port.Len()-1, math.MaxUint16)
	return balancer.Key{Addr: b.Addr(), Port: balancer.NewPortRange(b.Port(), uint16(last)), Proto: f.Proto}
}

// AddDirect adds an endpoint to Direct, if it gets new connections by direct routing.
func (f *Frontend) AddDirect(forward balancer.Forward, at netip.AddrPort, state balancer.BackendState) {
	if forward == balancer.DRForward && state == balancer.Active {
		f.Direct = append(f.Direct, at.Addr())
	}
}

// Host holds everything that checks can read about a host.
type Host struct {
	System
	Ledgers
	Failover
	Link
	// Config is the configuration in ConfigFile, or the defaults if it can't be used. In that case,
	// ConfigProblem is the reason. Otherwise it is "".
	Config        config.Config
	ConfigFile    string
	ConfigProblem string
	// Problems holds the running vipd's problems or, if no vipd is running, the problems of the
	// configuration's services.
	Problems []balancer.Problem
	// Status is the running vipd's status. If no vipd answers, it is nil, and NoDaemon is the
	// reason.
	Status   *api.Status
	NoDaemon string
	// Frontends holds the running vipd's frontends or, if no vipd is running, the frontends
	// compiled from the configuration.
	Frontends []Frontend
	// Modes lists the modes that this version has, starting with the best.
	Modes []modes.Mode
}

// Ledgers reads the files in which vipd records its kernel objects.
type Ledgers struct {
	// Recorded returns the IPVS virtual servers in vipd's ledger.
	Recorded func() ([]balancer.Key, error)
	// Held maps the addresses in vipd's ledger to their devices.
	Held func() (map[netip.Addr]string, error)
}

// Failover reads the state that matters for owning VIPs.
type Failover struct {
	// Fence checks whether the kernel can fence (block) the VIPs that have one owner. If it can't,
	// the error is the reason.
	Fence func() error
	// Owner returns the status of the vipd owner on this host.
	Owner func() (*api.OwnerStatus, error)
	// Members returns each etcd member's URLs.
	Members func(ctx context.Context) ([][]string, error)
}

// Link finds other hosts on this host's networks.
type Link struct {
	// Elsewhere probes a device's link for other hosts that answer for the VIPs. It maps each VIP
	// that another host answers for to that host's MAC address.
	Elsewhere func(ctx context.Context, device string, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error)
	// Neighbor returns the kernel's entry for a host on a link. If it is nil, links are not
	// checked.
	Neighbor func(netip.Addr) (host.Neighbor, error)
	// Neighbours maps the addresses in the kernel's neighbour tables to their devices.
	Neighbours func() (map[netip.Addr]string, error)
}

// observed is a Host with the data that several checks need. Checks don't change it.
type observed struct {
	Host
	// vips holds the addresses of all frontends except node ports.
	vips map[netip.Addr]bool
	// interfaces lists the host's devices.
	interfaces []Interface
	// backends holds each iptables backend's rules, per family.
	backends []*iptablesRules
	// foreign lists other programs' rules that affect connection tracking, translation or marks.
	foreign []foreignRule
	// trials holds the result of each mode's trial. serves is the mode that vipd would use
	// according to these results, or "" if they are inconclusive.
	trials []trial
	serves config.ModeName
}

// observe reads a host's devices and firewall rules. tables lists the iptables tables to read. If
// empty, observe reads all tables.
func observe(ctx context.Context, h Host, tables ...string) *observed {
	o := &observed{Host: h, vips: map[netip.Addr]bool{}}
	o.interfaces, _ = h.Interfaces() // after an error, findings name no devices
	for _, f := range h.Frontends {
		if !f.NodePort {
			o.vips[f.Addr] = true
		}
	}
	if !h.NotLinux {
		o.backends = readBackends(ctx, o, tables)
		o.foreign = o.foreignRules(ctx)
	}
	return o
}

// mode returns the mode in use. If no vipd answers, it returns the mode that vipd would use
// according to the trials. If they are inconclusive, it returns the configured mode, and for auto
// the best mode.
func (o *observed) mode() modes.Mode {
	name := cmp.Or(o.serves, o.Config.Mode)
	if o.Status != nil {
		name = config.ModeName(o.Status.Mode.InUse)
	}
	for _, m := range o.Modes {
		if m.Name == name {
			return m
		}
	}
	return o.Modes[0]
}

// binds reports whether vipd itself listens on the VIPs, because it uses userspace mode without
// redirects.
func (o *observed) binds() bool {
	return o.mode().Name == config.UserspaceMode &&
		(o.Config.Userspace.Intercept == config.BindIntercept || o.Status != nil && strings.HasPrefix(o.Status.Mode.Detail, "bind"))
}

// hasFamily reports whether any frontend has an address of the family: IPv4 if is4 is true, and
// otherwise IPv6.
func (o *observed) hasFamily(is4 bool) bool {
	return slices.ContainsFunc(o.Frontends, func(f Frontend) bool { return f.Addr.Is4() == is4 })
}

// connectionMark returns the bit that vipd sets in the mark of each connection to a frontend.
func (o *observed) connectionMark() uint32 { return 1 << ((o.Config.IPTables.MasqueradeBit + 1) % 32) }

// translates reports whether connection tracking records how connections to VIPs are translated. It
// does not record translations by IPVS.
func (o *observed) translates() bool { return o.mode().Name != config.IPVSMode }
