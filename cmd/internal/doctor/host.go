package doctor

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

// Frontend is an address and port of a service.
type Frontend struct {
	balancer.Key
	NodePort bool
	Service  balancer.Name
	// Scheduler is the scheduler compiled for the mode in use, or "" if it is unknown.
	Scheduler balancer.Scheduler
	// Backends are the frontend's endpoints.
	Backends []netip.AddrPort
	// Idle is the reason why no endpoint of the frontend gets new connections, or "" if an endpoint
	// does.
	Idle string
}

// FrontendOf returns the part of a compiled frontend that checks need.
func FrontendOf(f *balancer.Frontend) Frontend {
	frontend := Frontend{Key: f.Key, NodePort: f.NodePort, Service: f.Service, Scheduler: f.Scheduler}
	var states []balancer.BackendState
	for _, b := range f.Backends {
		frontend.Backends, states = append(frontend.Backends, b.Addr), append(states, b.State)
	}
	frontend.Idle = Idle(states)
	return frontend
}

// Host holds everything that checks can read about a host.
type Host struct {
	System
	Ledgers
	Failover
	Link
	// Config is the content of ConfigFile, or the defaults. ConfigProblem is the reason why Config
	// differs from the file, or "".
	Config        config.Config
	ConfigFile    string
	ConfigProblem string
	// Problems holds the problems of the running vipd or, if none runs, of the configuration's
	// services.
	Problems []balancer.Problem
	// Status is the status of the running vipd. It is nil if no vipd answers, for the reason in
	// NoDaemon.
	Status   *api.Status
	NoDaemon string
	// Frontends holds the frontends of the running vipd or, if none runs, the frontends compiled
	// from the configuration.
	Frontends []Frontend
	// Modes lists the modes of this version, starting with the best.
	Modes []modes.Mode
}

// Ledgers reads vipd's records of its kernel objects.
type Ledgers struct {
	// Recorded returns the virtual servers of IPVS in vipd's ledger.
	Recorded func() ([]balancer.Key, error)
	// Held returns the addresses in vipd's ledger, with their devices.
	Held func() (map[netip.Addr]string, error)
}

// Failover reads this host's state as an owner of VIPs.
type Failover struct {
	// Fence checks whether the kernel can fence VIPs that have one owner. If not, the error is the
	// reason.
	Fence func() error
	// Owner returns the status of this host's vipd owner.
	Owner func() (*api.OwnerStatus, error)
	// Members returns the URLs of each member of etcd.
	Members func(ctx context.Context) ([][]string, error)
}

// Link probes the networks of the host for other hosts.
type Link struct {
	// Elsewhere probes the link of a device for other hosts that have VIPs of this host. vips are
	// the VIPs that this host has or will have there.
	Elsewhere func(ctx context.Context, device string, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error)
	// Neighbours lists the hosts in the kernel's neighbour tables, with their devices.
	Neighbours func() (map[netip.Addr]string, error)
}

// observed is a Host with observations that several checks share. Checks don't change it.
type observed struct {
	Host
	// vips holds the addresses of all frontends except node ports.
	vips map[netip.Addr]bool
	// interfaces lists the devices of the host.
	interfaces []Interface
	// backends lists the readable backends of iptables.
	backends []*iptablesRules
	// foreign lists the rules of other programs that affect tracking, translation or marks.
	foreign []foreignRule
	// trials holds the trial of each mode. serves is the mode that vipd would use according to the
	// trials, or "" if they are inconclusive.
	trials []trial
	serves config.ModeName
}

// observe reads the devices of a host, and its firewall rules in the given tables. If no tables are
// given, it reads all tables.
func observe(ctx context.Context, h Host, tables ...string) *observed {
	o := &observed{Host: h, vips: map[netip.Addr]bool{}}
	o.interfaces, _ = h.Interfaces() // without a list of devices, findings can't name devices
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

// mode returns the mode in use. Without a daemon, it returns the mode that the trials chose or, if
// they are inconclusive, the configured mode. For auto, the latter is the best mode.
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

// binds reports whether vipd listens on VIPs itself.
func (o *observed) binds() bool {
	return o.mode().Name == config.UserspaceMode &&
		(o.Config.Userspace.Intercept == config.BindIntercept || o.Status != nil && strings.HasPrefix(o.Status.Mode.Detail, "bind"))
}

// hasFamily reports whether a frontend has an address of the family.
func (o *observed) hasFamily(is4 bool) bool {
	return slices.ContainsFunc(o.Frontends, func(f Frontend) bool { return f.Addr.Is4() == is4 })
}

// connectionMark returns the bit that vipd sets in the mark of connections to frontends.
func (o *observed) connectionMark() uint32 { return 1 << ((o.Config.IPTables.MasqueradeBit + 1) % 32) }

// translates reports whether connection tracking knows the translations of connections to VIPs. It
// does not know translations by IPVS.
func (o *observed) translates() bool { return o.mode().Name != config.IPVSMode }
