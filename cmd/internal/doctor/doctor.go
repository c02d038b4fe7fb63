package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/wording"
)

// Level is how much a finding matters.
type Level string

// The levels, from the best on.
const (
	// OK: this is as it should be.
	OK Level = "ok"
	// Note is good to know, and usually no reason to do anything.
	Note Level = "note"
	// Warning: something may go wrong, or some traffic may be lost.
	Warning Level = "warning"
	// Problem: what the configuration asks for can't work.
	Problem Level = "problem"
)

// Finding is one thing that was seen.
type Finding struct {
	Level Level `json:"level"`
	// Check is what it belongs to, such as "sysctls".
	Check string `json:"check"`
	// What was seen, in one sentence without a full stop.
	What string `json:"what"`
	// Why it matters; "" where that is plain.
	Why string `json:"why,omitempty"`
	// Mend is the command that mends it, or that shows more; "" where there is nothing to do.
	Mend string `json:"mend,omitempty"`
}

func fine(what string) Finding { return Finding{Level: OK, What: what} }
func note(what, why, mend string) Finding {
	return Finding{Level: Note, What: what, Why: why, Mend: mend}
}
func warning(what, why, mend string) Finding {
	return Finding{Level: Warning, What: what, Why: why, Mend: mend}
}
func problem(what, why, mend string) Finding {
	return Finding{Level: Problem, What: what, Why: why, Mend: mend}
}

// Frontend is a place where services listen.
type Frontend struct {
	balancer.Key
	NodePort bool
	Service  balancer.Name
	// Scheduler is as compiled for the mode in use; "" where it is not known.
	Scheduler balancer.Scheduler
	// Backends are its endpoints.
	Backends []netip.AddrPort
	// Idle is why no endpoint gets new connections there; "" means one does.
	Idle string
}

// Interface is a network device of the host.
type Interface struct {
	Name string
	// Bridge: it is a switch that the kernel makes.
	Bridge bool
	// OneWay are the ports of a bridge that send nothing back by the way it came: hairpin mode is off.
	OneWay []string
	Addrs  []netip.Addr
	// Networks are those that it leads to.
	Networks []netip.Prefix
}

// Host is what checks see of a host.
type Host struct {
	// Root: this process may read rules and try modes.
	Root bool
	// NotLinux: the host runs another system, which has none of what most checks look at.
	NotLinux bool
	// Config is what ConfigFile says, or the defaults; ConfigProblem is why it is not, or not wholly, what the file says.
	Config        config.Config
	ConfigFile    string
	ConfigProblem string
	// Status is what the running vipd says; nil means none answers, for the reason NoDaemon.
	Status   *api.Status
	NoDaemon string
	// Frontends are those of the running vipd, or what the configuration comes to without one.
	Frontends []Frontend
	// Modes are those of this version, the best first.
	Modes []modes.Mode
	// Interfaces lists the devices of the host.
	Interfaces func() ([]Interface, error)
	// ReadFile reads a file of /proc, /sys, /lib/modules or /etc.
	ReadFile func(path string) ([]byte, error)
	// Look finds a program, and Run runs one and returns what it writes to standard output.
	Look func(program string) (string, error)
	Run  func(ctx context.Context, program string, args ...string) (string, error)
	// Owners returns the program that has each socket, by inode, of those processes that can be seen.
	Owners func() map[string]string
	// Own returns the sockets of the process that looks, by inode, where that is the daemon; nil means it is not.
	Own func() map[string]bool
	// Words are the arguments and environment of a program that runs; none where none can be seen to run.
	Words func(program string) []string
	// Members are the URLs of each member of etcd.
	Members func(ctx context.Context) ([][]string, error)
	// Owned returns the virtual servers of IPVS that vipd's ledger names.
	Owned func() ([]balancer.Key, error)
	// Fence tries whether the kernel can fence VIPs that have one owner, and says why not.
	Fence func() error
	// Elsewhere asks on the link of a device who else has addresses that this host has there, or shall have.
	Elsewhere func(ctx context.Context, device string, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error)
	// Neighbours lists the hosts that the kernel knows on its links, with the devices.
	Neighbours func() (map[netip.Addr]string, error)
	// Owner asks the vipd owner of this host how it is.
	Owner func() (*api.OwnerStatus, error)
	// Held returns the addresses that vipd's ledger names as put there by it, with their devices.
	Held func() (map[netip.Addr]string, error)
}

// check is one entry of the table.
type check struct {
	name string
	run  func(ctx context.Context, v *visit)
	// everywhere: it also makes sense on systems other than Linux.
	everywhere bool
}

// checks is the table, in the order of the output.
func checks() []check {
	return []check{
		{"vipd", checkDaemon, true},
		{"fleet", checkFleet, true},
		{"modes", checkModes, true},
		{"ipvs", checkIPVS, false},
		{"tools", checkTools, false},
		{"kernel", checkKernel, false},
		{"ownership", checkOwnership, false},
		{"sysctls", checkSysctls, false},
		{"others", checkOthers, false},
		{"firewall", checkFirewall, false},
		{"sockets", checkSockets, false},
		{"services", checkServices, true},
		{"traffic", checkTraffic, false},
	}
}

func newVisit(h Host) *visit {
	v := &visit{Host: h, vips: map[netip.Addr]bool{}}
	for _, f := range h.Frontends {
		if !f.NodePort {
			v.vips[f.Addr] = true
		}
	}
	return v
}

// FrontendOf is a compiled frontend as doctor looks at it.
func FrontendOf(f *balancer.Frontend) Frontend {
	of := Frontend{Key: f.Key, NodePort: f.NodePort, Service: f.Service, Scheduler: f.Scheduler}
	var states []balancer.BackendState
	for _, b := range f.Backends {
		of.Backends, states = append(of.Backends, b.Addr), append(states, b.State)
	}
	of.Idle = Idle(states)
	return of
}

// Examine makes every check, and returns what they found in the order of the checks.
func Examine(ctx context.Context, h Host) []Finding {
	v := newVisit(h)
	if !h.NotLinux {
		v.backends = readBackends(ctx, v, "")
	}
	for _, c := range checks() {
		if h.NotLinux && !c.everywhere {
			continue
		}
		v.check = c.name
		c.run(ctx, v)
	}
	return v.found
}

// Drops returns what may keep packets from VIPs: the warnings and problems of the check "firewall". A daemon can afford
// it each minute: it tries nothing, and reads no rules but those of the filter tables.
func Drops(ctx context.Context, h Host) []Finding {
	v := newVisit(h)
	v.backends = readBackends(ctx, v, "filter")
	v.check = "firewall"
	checkFirewall(ctx, v)
	return slices.DeleteFunc(v.found, func(f Finding) bool { return f.Level != Warning && f.Level != Problem })
}

// Taken returns the programs of the host that get no connections any more, as services are where they listen. Where vipd can't listen for
// another program it says so itself. A daemon can afford it each minute.
func Taken(ctx context.Context, h Host) []Finding {
	v := newVisit(h)
	v.check = "sockets"
	checkSockets(ctx, v)
	return slices.DeleteFunc(v.found, func(f Finding) bool { return f.Level != Warning })
}

// visit is one examination: the host, and what several checks need of it.
type visit struct {
	Host
	// vips are the addresses of all frontends but those of node ports.
	vips map[netip.Addr]bool
	// backends are those of iptables that can be read.
	backends []*backend
	// serves is the mode that vipd would take, as far as the trials have shown; "" where they have not.
	serves config.ModeName
	// found is what the checks have found so far, check the one that runs.
	found []Finding
	check string
}

// add adds findings of the check that runs.
func (v *visit) add(found ...Finding) {
	for _, f := range found {
		f.Check = v.check
		v.found = append(v.found, f)
	}
}

// mode is the mode in use, or, without a daemon, the one that the configuration comes to here. Where that could not be
// tried, it is the one that it comes to where all modes work.
func (v *visit) mode() modes.Mode {
	name := cmp.Or(v.serves, v.Config.Mode)
	if v.Status != nil {
		name = config.ModeName(v.Status.Mode.InUse)
	}
	for _, m := range v.Modes {
		if m.Name == name {
			return m
		}
	}
	return v.Modes[0]
}

// binds reports whether vipd listens on VIPs itself.
func (v *visit) binds() bool {
	return v.mode().Name == config.UserspaceMode &&
		(v.Config.Userspace.Intercept == config.BindIntercept || v.Status != nil && strings.HasPrefix(v.Status.Mode.Detail, "bind"))
}

// runs reports whether a program runs, as far as its processes can be seen.
func (v *visit) runs(program string) bool { return len(v.Words(program)) > 0 }

// kernelSince reports whether the kernel is of this version or later; false where that is not known.
func (v *visit) kernelSince(major, minor int) bool {
	var is [2]int
	_, err := fmt.Sscanf(v.text("/proc/sys/kernel/osrelease"), "%d.%d", &is[0], &is[1])
	return err == nil && slices.Compare(is[:], []int{major, minor}) >= 0
}

// has reports whether any frontend is of the family.
func (v *visit) has(is4 bool) bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool { return f.Addr.Is4() == is4 })
}

// text reads a file without the white space around it; "" where it can't be read.
func (v *visit) text(path string) string {
	text, err := v.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// sysctl reads one such as net.ipv4.ip_forward; "" where the kernel does not have it.
func (v *visit) sysctl(name string) string {
	return v.text("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
}

// list writes the first few of what there is.
func list(all []string) string { return wording.Some(all, 5) }
