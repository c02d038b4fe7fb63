package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/store"
	"vipd/store/tomlfile"
)

// DefaultFile is the default configuration file for the daemon and vipctl.
const DefaultFile = "/etc/vipd/vipd.toml"

// Config is the daemon's own part of vipd.toml. Paths are absolute unless the file itself was given
// as a relative path.
type Config struct {
	// Mode is the configured mode. The default, auto, selects the best mode that works on this
	// host.
	Mode ModeName `toml:"mode"`
	// StrictMode makes vipd fail to start if Mode does not work, instead of using another mode.
	StrictMode bool `toml:"strict_mode"`
	// Node is this host's name in the fleet. The default is the host name.
	Node string `toml:"node"`
	// Zone is the name of this host's zone. Services may prefer endpoints in the same zone.
	Zone string `toml:"zone"`
	// ClampMSS selects when TCP segments are limited to their path's MTU, in modes that forward
	// packets.
	ClampMSS ClampMSS `toml:"clamp_mss"`
	// FastPath lists devices. Established connections between them skip netfilter and routing. The
	// value "auto" means all devices. FastPathHardware offloads these connections to the devices'
	// hardware.
	FastPath         []string `toml:"fast_path"`
	FastPathHardware bool     `toml:"fast_path_hardware"`
	// StateDir holds files that must survive a reboot. RunDir holds all other files.
	StateDir  string         `toml:"state_dir"`
	RunDir    string         `toml:"run_dir"`
	Store     Store          `toml:"store"`
	Etcd      Etcd           `toml:"etcd"`
	Defaults  map[string]any `toml:"defaults"`
	Sync      Sync           `toml:"sync"`
	Addresses Addresses      `toml:"addresses"`
	NodePorts NodePorts      `toml:"node_ports"`
	Host      Host           `toml:"host"`
	Direct    Direct         `toml:"direct"`
	Health    Health         `toml:"health"`
	Userspace Userspace      `toml:"userspace"`
	IPVS      IPVS           `toml:"ipvs"`
	IPTables  IPTables       `toml:"iptables"`
	API       API            `toml:"api"`
	Metrics   Metrics        `toml:"metrics"`
	Hooks     Hooks          `toml:"hooks"`
	Tracing   Tracing        `toml:"tracing"`
	Ownership Ownership      `toml:"ownership"`
	Resolver  Resolver       `toml:"resolver"`
	// Services and VIPs are decoded by the store, not by this package. VIPs holds individual VIPs'
	// settings.
	Services map[string]any `toml:"services"`
	VIPs     map[string]any `toml:"vips"`
}

// ModeName is the name of a mode, or "auto".
type ModeName string

// These are the values of Mode.
const (
	AutoMode      ModeName = "auto"
	IPVSMode      ModeName = "ipvs"
	NFTablesMode  ModeName = "nftables"
	IPTablesMode  ModeName = "iptables"
	UserspaceMode ModeName = "userspace"
)

// Values lists the valid values.
func (ModeName) Values() []string { return balancer.ModeNames() }

// StoreKind is the kind of store from which services are read.
type StoreKind string

// These are the kinds of stores.
const (
	FileStore StoreKind = "file"
	EtcdStore StoreKind = "etcd"
)

// Values lists the valid values.
func (StoreKind) Values() []string { return []string{"file", "etcd"} }

// Intercept is a method that userspace mode uses to intercept traffic.
type Intercept string

// These are the interception methods.
const (
	AutoIntercept     Intercept = "auto"
	RedirectIntercept Intercept = "redirect"
	BindIntercept     Intercept = "bind"
)

// Values lists the valid values.
func (Intercept) Values() []string { return []string{"auto", "redirect", "bind"} }

// IptablesBackend is the iptables variant that vipd uses.
type IptablesBackend string

// These are the iptables variants.
const (
	AutoBackend   IptablesBackend = "auto"
	NFTBackend    IptablesBackend = "nft"
	LegacyBackend IptablesBackend = "legacy"
)

// Values lists the valid values.
func (IptablesBackend) Values() []string { return []string{"auto", "nft", "legacy"} }

// ClampMSS selects when TCP segments are limited to their path's MTU.
type ClampMSS string

// These are the values of ClampMSS.
const (
	// AutoClampMSS limits segments only while links or routes have different MTUs.
	AutoClampMSS   ClampMSS = "auto"
	AlwaysClampMSS ClampMSS = "always"
)

// Values lists the valid values.
func (ClampMSS) Values() []string { return []string{"auto", "always"} }

// Store configures the source of services.
type Store struct {
	Kind StoreKind `toml:"kind"`
	// Path is another TOML file or a directory of TOML files that defines services. It may be
	// empty.
	Path string `toml:"path"`
}

// Etcd configures the connection to etcd.
type Etcd struct {
	Endpoints    []string `toml:"endpoints"`
	Prefix       string   `toml:"prefix"`
	Username     string   `toml:"username"`
	PasswordFile string   `toml:"password_file"`
	CAFile       string   `toml:"ca_file"`
	CertFile     string   `toml:"cert_file"`
	KeyFile      string   `toml:"key_file"`
}

// Sync configures how often vipd changes, probes and compares its kernel objects.
type Sync struct {
	MinInterval    time.Duration `toml:"min_interval"`
	ProbeInterval  time.Duration `toml:"probe_interval" range:"10ms,"`
	ResyncInterval time.Duration `toml:"resync_interval" range:"1s,"`
}

// Addresses configures how this host holds VIPs.
type Addresses struct {
	// Interface is the device that holds the VIPs: a dummy device that vipd creates, or a real
	// device.
	Interface string `toml:"interface"`
	// Bind reports whether vipd adds the VIPs to the device. If false, another program must add
	// them.
	Bind      bool `toml:"bind"`
	StrictARP bool `toml:"strict_arp"`
	// Allowed lists the networks whose addresses services may claim.
	Allowed []netip.Prefix `toml:"allowed"`
	// AllowedEndpoints lists networks. Services from etcd may use this host's and other nodes'
	// addresses as endpoints only if the addresses are in one of these networks.
	AllowedEndpoints []netip.Prefix `toml:"allowed_endpoints"`
}

// NodePorts limits which of this host's addresses serve node ports.
type NodePorts struct {
	Addresses []netip.Prefix `toml:"addresses"`
}

// Host configures which of the host's settings vipd may change.
type Host struct {
	ManageSysctls bool `toml:"manage_sysctls"`
}

// Direct configures this host as a real server, which is a host with an endpoint for direct
// routing.
type Direct struct {
	// RealServer reports whether this host is a real server for services with forward = "dr". If
	// one of its addresses is an endpoint of such a service, it holds the service's VIPs without
	// answering ARP for them. Other hosts are the gateways.
	RealServer bool `toml:"real_server"`
}

// Health limits health checks.
type Health struct {
	AllowExec bool `toml:"allow_exec"`
	// TLSDir is the directory with the TLS files that health checks may use if their services come
	// from etcd.
	TLSDir string `toml:"tls_dir"`
}

// Userspace configures userspace mode.
type Userspace struct {
	Intercept Intercept `toml:"intercept"`
	// AccessLog is the destination of the access log, which has a line for each connection that
	// ends, in every mode. "journal" is vipd's own log, and any other value is a file. If empty, no
	// log is written. A service may set a different destination.
	AccessLog string `toml:"access_log"`
}

// IPVS configures the kernel's timeouts for idle connections, in whole seconds, for all virtual
// servers on the host. 0 keeps the kernel's value. The kernel's defaults are 15 minutes
// (TCPTimeout), 2 minutes (TCPFinTimeout) and 5 minutes (UDPTimeout).
type IPVS struct {
	// TCPTimeout is the timeout for established TCP connections. If nil, vipd raises the kernel's
	// timeout to conntrack's timeout, unless vipd may not change sysctls or other programs have
	// virtual servers.
	TCPTimeout *time.Duration `toml:"tcp_timeout"`
	// TCPFinTimeout is the timeout for TCP connections that one side has closed.
	TCPFinTimeout time.Duration `toml:"tcpfin_timeout"`
	// UDPTimeout is the timeout for UDP flows.
	UDPTimeout time.Duration `toml:"udp_timeout"`
}

// IPTables configures iptables mode.
type IPTables struct {
	Backend       IptablesBackend `toml:"backend"`
	MasqueradeBit int             `toml:"masquerade_bit" range:"0,31"`
}

// API configures the daemon's Unix socket and its HTTP listener.
type API struct {
	// Socket is the Unix socket for vipctl.
	Socket string `toml:"socket"`
	// HTTP is the ADDRESS:PORT at which vipd serves metrics and its health. If empty, it does not
	// serve them.
	HTTP string `toml:"http"`
	// HTTPHosts lists names that HTTP requests may use for this host, in addition to its addresses,
	// its host name and localhost.
	HTTPHosts []string `toml:"http_hosts"`
	// ChangeGroup is the group whose members may change the running vipd with vipctl, in addition
	// to root. If empty, only root may do so.
	ChangeGroup string `toml:"change_group"`
}

// Ownership configures how this host takes part in owning VIPs with one owner (hold = "one").
type Ownership struct {
	// Enabled reports whether this host may own VIPs and takes part in choosing owners.
	Enabled bool `toml:"enabled"`
	// By is the protocol that chooses a VIP's owner. If empty, it is etcd if services are in etcd,
	// and otherwise VRRP.
	By OwnerBy `toml:"by"`
	// VRRP maps names to VIP groups. It is empty unless VRRP chooses owners.
	VRRP map[string]VRRP `toml:"vrrp"`
	// ReachTakes reports whether a VRRP backup takes over from a silent owner only if an address in
	// Reach answers.
	ReachTakes bool `toml:"reach_takes"`
	// Weight determines this host's share of the VIPs, relative to other hosts' weights. With
	// weight 0, the host owns only VIPs that prefer it or are moved to it.
	Weight int `toml:"weight" range:"0,65535"`
	// Interfaces lists the devices for owned VIPs. If empty, a VIP is on the device whose network
	// contains it.
	Interfaces []string `toml:"interfaces"`
	// Listen lists this host's addresses for heartbeats. If empty, heartbeats use the addresses of
	// all devices for owned VIPs, and the address from which the host reaches etcd.
	Listen []netip.Addr `toml:"listen"`
	// Reach lists addresses that must answer ARP or NDP on the device. If empty, the device's
	// default gateways must answer.
	Reach []netip.Addr `toml:"reach"`
	// Detect is how long an owner must be silent before another host replaces it.
	Detect time.Duration `toml:"detect" range:"400ms,10s"`
	// RestartGrace is how long vipd itself may be down in kernel modes before this host's VIPs
	// move.
	RestartGrace time.Duration `toml:"restart_grace" range:"0s,10m"`
	// AnnounceEvery is the interval between repeated announcements. If 0, VIPs are announced only
	// after changes.
	AnnounceEvery time.Duration `toml:"announce_every" range:"0s,24h"`
}

// Metrics limits the number of time series in the metrics.
type Metrics struct {
	// PerEndpoint reports whether each endpoint has its own time series.
	PerEndpoint bool `toml:"per_endpoint"`
}

// Hooks configures a program and its arguments for each kind of event. If a list is empty, no
// program runs for that kind of event.
type Hooks struct {
	OnHealth  []string `toml:"on_health"`
	OnMode    []string `toml:"on_mode"`
	OnVIP     []string `toml:"on_vip"`
	OnProblem []string `toml:"on_problem"`
	OnDrain   []string `toml:"on_drain"`
	OnNames   []string `toml:"on_names"`
	// User is the user that runs these programs. The default is nobody.
	User string `toml:"user"`
}

// Commands maps the name of each setting, such as on_health, to its program and arguments. It omits
// settings without a program.
func (h *Hooks) Commands() map[string][]string {
	all := map[string][]string{
		"on_health": h.OnHealth, "on_mode": h.OnMode, "on_vip": h.OnVIP, "on_problem": h.OnProblem, "on_drain": h.OnDrain,
		"on_names": h.OnNames,
	}
	maps.DeleteFunc(all, func(_ string, command []string) bool { return len(command) == 0 })
	return all
}

// Tracing configures where spans are sent. If it is empty, tracing is off.
type Tracing struct {
	OTLPEndpoint string `toml:"otlp_endpoint"`
}

// Resolver configures how endpoints' names are looked up.
type Resolver struct {
	// Servers lists DNS servers, each ADDRESS or ADDRESS:PORT. If empty, the servers in
	// /etc/resolv.conf are used, and /etc/hosts is read first.
	Servers []string `toml:"servers"`
	// MaxNames is the maximum number of names that services from etcd may make this host look up.
	MaxNames int `toml:"max_names" range:"0,1000000"`
}

// Default returns the configuration that an empty file results in.
func Default() Config {
	return Config{
		Mode: AutoMode, ClampMSS: AutoClampMSS, StateDir: "/var/lib/vipd", RunDir: "/run/vipd",
		Store:     Store{Kind: FileStore},
		Etcd:      Etcd{Endpoints: []string{"http://127.0.0.1:2379"}, Prefix: "/vipd"},
		Sync:      Sync{MinInterval: 100 * time.Millisecond, ProbeInterval: time.Second, ResyncInterval: 10 * time.Minute},
		Addresses: Addresses{Interface: "vipd0", Bind: true, StrictARP: true},
		Host:      Host{ManageSysctls: true},
		Health:    Health{TLSDir: balancer.DefaultTLSDir},
		Resolver:  Resolver{MaxNames: 1000},
		Userspace: Userspace{Intercept: AutoIntercept},
		IPTables:  IPTables{Backend: AutoBackend, MasqueradeBit: 14},
		Ownership: Ownership{ReachTakes: true, Weight: 1, Detect: 800 * time.Millisecond, RestartGrace: 10 * time.Second, AnnounceEvery: time.Minute},
		Metrics:   Metrics{PerEndpoint: true},
		API:       API{Socket: "/run/vipd/vipd.sock", HTTP: "127.0.0.1:9890"},
	}
}

// Decode decodes the daemon's part of a document, and returns all problems, including a "services"
// or "vips" section that is not a table. A field that can't be decoded keeps its default.
func Decode(d store.Document) (Config, []balancer.Problem) {
	c := Default()
	problems := tomlfile.Sections(d)
	for _, p := range decode.Into(&c, d.Tree()) {
		if p.Path == "services" || p.Path == "vips" { // Sections reports it more precisely
			continue
		}
		problems = append(problems, balancer.Problem{
			Severity: balancer.SeverityError, Origin: d.Where(p.Path), Field: p.Path, Text: p.Text,
		})
	}
	c.Services, c.VIPs = nil, nil // a large file's tree must not stay in memory
	for name, g := range c.Ownership.VRRP {
		g.Origin = d.Where(decode.Join("ownership.vrrp", name))
		c.Ownership.VRRP[name] = g
	}
	for _, p := range c.validate() {
		p.Origin = d.Where(p.Field)
		problems = append(problems, p)
	}
	// Relative paths are relative to the file's directory, not to the program's working directory.
	base := filepath.Dir(d.File())
	for _, command := range c.Hooks.Commands() { // changes to the slices also change c
		if command[0] != "" && !filepath.IsAbs(command[0]) {
			command[0] = filepath.Join(base, command[0])
		}
	}
	for _, path := range []*string{
		&c.StateDir, &c.RunDir, &c.Health.TLSDir, &c.API.Socket, &c.Store.Path,
		&c.Etcd.PasswordFile, &c.Etcd.CAFile, &c.Etcd.CertFile, &c.Etcd.KeyFile,
	} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(base, *path)
		}
	}
	if log := &c.Userspace.AccessLog; *log != "" && *log != balancer.JournalLog && !filepath.IsAbs(*log) {
		*log = filepath.Join(base, *log)
	}
	c.Defaults = balancer.ResolvePaths(c.Defaults, d.Folder())
	return c, problems
}

// Load reads a configuration file. It returns an error if the file can't be read. Otherwise it
// returns the problems in the file, sorted by line.
func Load(file string) (Config, []balancer.Problem, error) {
	text, err := tomlfile.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Default(), nil, fmt.Errorf("there is no configuration at %s: create the file, or set --config to another file: %w", file, err)
	case err != nil:
		return Default(), nil, fmt.Errorf("reading the configuration: %w", err)
	}
	d, problems := tomlfile.Parse(file, text)
	if d == nil {
		return Default(), problems, nil
	}
	c, problems := Decode(d) // if Parse returns a document, it returns no problems
	slices.SortStableFunc(problems, func(a, b balancer.Problem) int { return cmp.Compare(a.Origin.Line, b.Origin.Line) })
	return c, problems, nil
}

// Unusable returns an error that joins all problems whose severity is error. It returns nil if the
// configuration can be used.
func Unusable(problems []balancer.Problem) error {
	var all []error
	for _, p := range problems {
		if p.Severity == balancer.SeverityError {
			all = append(all, errors.New(p.String()))
		}
	}
	return errors.Join(all...)
}
