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

// DefaultFile is the default configuration file of the daemon and vipctl.
const DefaultFile = "/etc/vipd/vipd.toml"

// Config is the daemon's own part of vipd.toml. Its paths are absolute unless the file was named by
// a relative path.
type Config struct {
	// Mode is the wanted dataplane. The default, auto, selects the best mode that works on this
	// host.
	Mode ModeName `toml:"mode"`
	// StrictMode prevents a start in a mode other than Mode.
	StrictMode bool `toml:"strict_mode"`
	// Node is this host's name in the fleet. The default is the host name.
	Node string `toml:"node"`
	// Zone is the name of this host's location.
	Zone string `toml:"zone"`
	// ClampMSS selects the connections whose segment size is limited to the MTU of their path, in
	// modes that forward packets.
	ClampMSS ClampMSS `toml:"clamp_mss"`
	// FastPath lists devices between which established connections skip netfilter and routing. The
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
	// Services and VIPs belong to the store. VIPs holds the settings of VIPs.
	Services map[string]any `toml:"services"`
	VIPs     map[string]any `toml:"vips"`
}

// ModeName is a mode, or auto.
type ModeName string

// These are the modes in a configuration.
const (
	AutoMode      ModeName = "auto"
	IPVSMode      ModeName = "ipvs"
	NFTablesMode  ModeName = "nftables"
	IPTablesMode  ModeName = "iptables"
	UserspaceMode ModeName = "userspace"
)

// Values lists the valid values.
func (ModeName) Values() []string { return balancer.ModeNames() }

// StoreKind is the kind of place from which services are read.
type StoreKind string

// These are the kinds of stores.
const (
	FileStore StoreKind = "file"
	EtcdStore StoreKind = "etcd"
)

// Values lists the valid values.
func (StoreKind) Values() []string { return []string{"file", "etcd"} }

// Intercept is the way in which userspace mode intercepts traffic.
type Intercept string

// These are the ways to intercept traffic.
const (
	AutoIntercept     Intercept = "auto"
	RedirectIntercept Intercept = "redirect"
	BindIntercept     Intercept = "bind"
)

// Values lists the valid values.
func (Intercept) Values() []string { return []string{"auto", "redirect", "bind"} }

// IptablesBackend is a variant of iptables.
type IptablesBackend string

// These are the variants of iptables.
const (
	AutoBackend   IptablesBackend = "auto"
	NFTBackend    IptablesBackend = "nft"
	LegacyBackend IptablesBackend = "legacy"
)

// Values lists the valid values.
func (IptablesBackend) Values() []string { return []string{"auto", "nft", "legacy"} }

// ClampMSS selects the connections whose segment size is limited to the MTU of their path.
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
	// Path is a TOML file or a directory of TOML files that is read in addition to the
	// configuration itself. It may be "".
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

// Sync limits the rate of changes in the kernel.
type Sync struct {
	MinInterval    time.Duration `toml:"min_interval"`
	ProbeInterval  time.Duration `toml:"probe_interval" range:"10ms,"`
	ResyncInterval time.Duration `toml:"resync_interval" range:"1s,"`
}

// Addresses configures how this host holds VIPs.
type Addresses struct {
	// Interface is the device of the VIPs: a dummy device that vipd creates, or a real device.
	Interface string `toml:"interface"`
	// Bind reports whether vipd adds the addresses. If false, another program manages them.
	Bind      bool `toml:"bind"`
	StrictARP bool `toml:"strict_arp"`
	// Allowed lists the networks whose addresses services may claim.
	Allowed []netip.Prefix `toml:"allowed"`
	// AllowedEndpoints lists the networks of host addresses, of this host or of other nodes, that
	// may be endpoints of services from etcd.
	AllowedEndpoints []netip.Prefix `toml:"allowed_endpoints"`
}

// NodePorts configures the addresses of node ports.
type NodePorts struct {
	Addresses []netip.Prefix `toml:"addresses"`
}

// Host configures which settings of the host vipd may change.
type Host struct {
	ManageSysctls bool `toml:"manage_sysctls"`
}

// Direct configures this host's part in direct routing as the host of an endpoint.
type Direct struct {
	// RealServer reports whether this host holds the VIPs of services with forward = "dr" without
	// answering ARP, if one of its own addresses is their endpoint. Other hosts are the gateways.
	RealServer bool `toml:"real_server"`
}

// Health limits health checks.
type Health struct {
	AllowExec bool `toml:"allow_exec"`
	// TLSDir is the directory that contains the TLS files for checks of services from etcd.
	TLSDir string `toml:"tls_dir"`
}

// Userspace configures userspace mode.
type Userspace struct {
	Intercept Intercept `toml:"intercept"`
	// AccessLog is the destination of the access log, which has a line for each connection that
	// ends, in every mode. "journal" is vipd's own log, and any other value is a file. If empty, no
	// lines are written. A service may set another destination.
	AccessLog string `toml:"access_log"`
}

// IPVS configures the timeouts of idle connections in the kernel, in whole seconds, for all virtual
// servers of the host. 0 keeps the kernel's value. The kernel's defaults are 15 minutes, 2 minutes
// and 5 minutes.
type IPVS struct {
	// TCPTimeout is the timeout of established TCP connections. If nil, conntrack's timeout is used
	// if it is longer, vipd manages sysctls, and all virtual servers are vipd's.
	TCPTimeout *time.Duration `toml:"tcp_timeout"`
	// TCPFinTimeout is the timeout of TCP connections that one side has closed.
	TCPFinTimeout time.Duration `toml:"tcpfin_timeout"`
	// UDPTimeout is the timeout of UDP flows.
	UDPTimeout time.Duration `toml:"udp_timeout"`
}

// IPTables configures iptables mode.
type IPTables struct {
	Backend       IptablesBackend `toml:"backend"`
	MasqueradeBit int             `toml:"masquerade_bit" range:"0,31"`
}

// API configures the daemon's sockets.
type API struct {
	// Socket is the Unix socket for vipctl.
	Socket string `toml:"socket"`
	// HTTP is the address of metrics and health. If empty, they are not served.
	HTTP string `toml:"http"`
	// HTTPHosts lists names of this host under which HTTP answers, in addition to its addresses,
	// its host name and localhost.
	HTTPHosts []string `toml:"http_hosts"`
	// ChangeGroup is the group whose members may change the running vipd with vipctl, in addition
	// to root. If empty, only root may.
	ChangeGroup string `toml:"change_group"`
}

// Ownership configures this host's part in VIPs with one owner (hold = "one").
type Ownership struct {
	// Enabled reports whether this host may own VIPs and takes part in the decision.
	Enabled bool `toml:"enabled"`
	// By is the protocol that decides the owner. If empty, etcd decides if services are in etcd,
	// and VRRP otherwise.
	By OwnerBy `toml:"by"`
	// VRRP maps names to groups of VIPs, if VRRP decides.
	VRRP map[string]VRRP `toml:"vrrp"`
	// ReachTakes reports whether a VRRP backup takes over from a silent owner only if an address in
	// Reach answers.
	ReachTakes bool `toml:"reach_takes"`
	// Weight is this host's share of the VIPs. With weight 0, the host owns only VIPs that prefer
	// it or are moved to it.
	Weight int `toml:"weight" range:"0,65535"`
	// Interfaces lists the devices of owned VIPs. If empty, a VIP is on the device whose network
	// contains it.
	Interfaces []string `toml:"interfaces"`
	// Listen lists this host's addresses for heartbeats. If empty, heartbeats use the addresses of
	// the devices of owned VIPs, and the address from which the host reaches etcd.
	Listen []netip.Addr `toml:"listen"`
	// Reach lists addresses that must answer on the device. If empty, the default gateways on the
	// device must answer.
	Reach []netip.Addr `toml:"reach"`
	// Detect is the time for which a host must be silent before another host replaces it.
	Detect time.Duration `toml:"detect" range:"400ms,10s"`
	// RestartGrace is how long vipd itself may be down in kernel modes before its VIPs move.
	RestartGrace time.Duration `toml:"restart_grace" range:"0s,10m"`
	// AnnounceEvery is the interval of repeated announcements. If 0, VIPs are announced only after
	// changes.
	AnnounceEvery time.Duration `toml:"announce_every" range:"0s,24h"`
}

// Metrics limits the cost of a scrape.
type Metrics struct {
	// PerEndpoint reports whether endpoints have their own series.
	PerEndpoint bool `toml:"per_endpoint"`
}

// Hooks lists programs that run on events, with their arguments. An empty list means that no
// program runs.
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

// Commands returns the configured programs, by the name of their setting.
func (h *Hooks) Commands() map[string][]string {
	all := map[string][]string{
		"on_health": h.OnHealth, "on_mode": h.OnMode, "on_vip": h.OnVIP, "on_problem": h.OnProblem, "on_drain": h.OnDrain,
		"on_names": h.OnNames,
	}
	maps.DeleteFunc(all, func(_ string, command []string) bool { return len(command) == 0 })
	return all
}

// Tracing configures the receiver of spans. If it is empty, tracing is off.
type Tracing struct {
	OTLPEndpoint string `toml:"otlp_endpoint"`
}

// Resolver configures how names of endpoints are looked up.
type Resolver struct {
	// Servers lists DNS servers, each ADDRESS or ADDRESS:PORT. If empty, the servers in
	// /etc/resolv.conf are used, and /etc/hosts is read first.
	Servers []string `toml:"servers"`
	// MaxNames is the maximum number of lookups that only services from etcd request.
	MaxNames int `toml:"max_names" range:"0,1000000"`
}

// Default returns the configuration of an empty file.
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

// Decode decodes the daemon's part of a document, and returns all problems. A field with a problem
// keeps its default.
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
	for name, g := range c.Ownership.VRRP {
		g.Origin = d.Where(decode.Join("ownership.vrrp", name))
		c.Ownership.VRRP[name] = g
	}
	for _, p := range c.validate() {
		p.Origin = d.Where(p.Field)
		problems = append(problems, p)
	}
	// Relative paths must not depend on the program's working directory.
	base := filepath.Dir(d.File())
	for _, command := range c.Hooks.Commands() { // the slices share memory with c
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

// Load reads a configuration file. It returns an error if the file can't be read. problems lists
// mistakes in the file, by line.
func Load(file string) (Config, []balancer.Problem, error) {
	text, err := tomlfile.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Default(), nil, fmt.Errorf("there is no configuration at %s: write one, or name another with --config: %w", file, err)
	case err != nil:
		return Default(), nil, fmt.Errorf("reading the configuration: %w", err)
	}
	d, problems := tomlfile.Parse(file, text)
	if d == nil {
		return Default(), problems, nil
	}
	c, problems := Decode(d) // problems of Parse have no document
	slices.SortStableFunc(problems, func(a, b balancer.Problem) int { return cmp.Compare(a.Origin.Line, b.Origin.Line) })
	return c, problems, nil
}

// Unusable returns an error that lists the problems that make a configuration unusable, or nil if
// there are none.
func Unusable(problems []balancer.Problem) error {
	var all []error
	for _, p := range problems {
		if p.Severity == balancer.SeverityError {
			all = append(all, errors.New(p.String()))
		}
	}
	return errors.Join(all...)
}
