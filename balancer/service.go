package balancer

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"time"
)

// Service is the definition of a service: virtual addresses, ports, and the endpoints behind them.
// Its fields correspond to the keys of a [services.NAME] table. DecodeService sets every default.
type Service struct {
	// Name is the table's name, a DNS label.
	Name Name `toml:"-"`
	// Origin is where the service is defined.
	Origin Origin `toml:"-"`
	// VIPs are the virtual addresses in the definition, IPv4 and IPv6.
	VIPs []netip.Addr `toml:"-"`
	// Pools lists the pools that provide additional VIPs, one entry for each "auto" or "auto:POOL"
	// in vips. "" is the default pool.
	Pools []string `toml:"-"`
	// Allocated are the VIPs from Pools, the oldest first. They are not part of the definition; the
	// store sets them.
	Allocated []netip.Addr `toml:"-"`
	// Ports has at least one entry.
	Ports []Port `toml:"ports"`
	// Endpoints may be empty.
	Endpoints []Endpoint `toml:"-"`
	// Discover finds additional endpoints. It may be nil.
	Discover *Discover `toml:"discover"`
	Policy
	// Affinity determines whether a client always gets the same endpoint. The default is none.
	Affinity Affinity `toml:"affinity"`
	// AffinityTimeout is how long a client keeps its endpoint after its last new connection. The
	// kernel's unit is seconds, and its ipset entries last at most about 25 days. Default 3h.
	AffinityTimeout time.Duration `toml:"affinity_timeout" range:"1s,576h"`
	// AffinityScope determines on which ports a client gets the same endpoint. Default port.
	AffinityScope AffinityScope `toml:"affinity_scope"`
	// AffinityPrefix holds the prefix lengths that group clients, for IPv4 and IPv6. If empty, each
	// address is a separate client.
	AffinityPrefix []int `toml:"affinity_prefix" range:"1,128"`
	// SourceRanges are the networks that may connect, besides the node itself. If empty, all
	// networks may.
	SourceRanges []netip.Prefix `toml:"source_ranges"`
	// Trusted are the networks whose PROXY headers vipd believes if AcceptProxyProtocol is set.
	Trusted []netip.Prefix `toml:"trusted"`
	// Locality determines whether nearby endpoints are preferred or required. Default any.
	Locality Locality `toml:"locality"`
	// IdleTimeout ends a connection or flow without traffic (userspace mode). 0 means never. If
	// nil, the default applies: never for TCP, 60s for UDP.
	IdleTimeout *time.Duration `toml:"idle_timeout"`
	// AccessLog is the log of ended connections: JournalLog, a file, or "" for no log. If nil, the
	// log in the node's configuration is used. See LogsTo.
	AccessLog *string `toml:"access_log"`
	// Health defines the endpoints' health check, or the first of several checks. Nil means no
	// checks. Need, PanicThreshold, OnFailure, Agent and From apply to the whole service, so they
	// are equal in all checks.
	Health *Health `toml:"-"`
	// MoreHealth are the checks after the first.
	MoreHealth []*Health `toml:"-"`
	// MinUsable is the minimum number of usable endpoints for each port and family, not counting
	// backups. If fewer endpoints are usable, none of them is used. The default is 0, so a single
	// endpoint is sufficient.
	MinUsable int `toml:"min_usable" range:"0,"`
	// Limits protect the service from its clients. Nil means no limits.
	Limits *Limits `toml:"limits"`
}

// JournalLog selects the journal as the access log.
const JournalLog = "journal"

// Addresses returns the VIPs in the definition and the VIPs allocated from pools. It shares memory
// with s.
func (s *Service) Addresses() []netip.Addr {
	if len(s.Allocated) == 0 {
		return s.VIPs
	}
	return append(s.VIPs[:len(s.VIPs):len(s.VIPs)], s.Allocated...)
}

// Claims returns the keys that s claims for itself, each with the field that claims it. A node port
// has no address, because it is open on every host. A nil service claims nothing. A port 0 is
// ignored, because it could not be read.
func (s *Service) Claims() map[Key]string {
	claims := map[Key]string{}
	if s == nil {
		return claims
	}
	for i, p := range s.Ports {
		if p.Port == 0 {
			continue
		}
		for _, vip := range s.Addresses() {
			claims[Key{Addr: vip, Port: p.Port, Proto: p.Protocol}] = fmt.Sprintf("ports[%d].port", i)
		}
		if p.NodePort != 0 {
			claims[Key{Port: PortRange(p.NodePort), Proto: p.Protocol}] = fmt.Sprintf("ports[%d].node_port", i)
		}
	}
	return claims
}

// Port is one port of a service, open on each of its VIPs.
type Port struct {
	// Name identifies the port. It is required if the service has several ports.
	Name string `toml:"name"`
	// Port is the port that is open on the VIPs, 1 to 65535. It may be a range, or AllPorts.
	Port PortRange `toml:"port" range:"1,65535"`
	// Protocol defaults to TCP.
	Protocol Protocol `toml:"protocol"`
	// TargetPort is the endpoints' port. The default is Port. If Port is a range, TargetPort is a
	// range of the same length.
	TargetPort PortRange `toml:"target_port" range:"0,65535"`
	// NodePort is a port that is also open on the node's own addresses, or 0.
	NodePort uint16 `toml:"node_port"`
}

// Endpoint is one server of a service.
type Endpoint struct {
	// Address is the endpoint's address, which serves VIPs of the same family. It is not valid if
	// the definition has a host name instead.
	Address netip.Addr `toml:"-"`
	// Name is a DNS name in lower case. The definition then represents an endpoint at each of the
	// name's addresses.
	Name string `toml:"-"`
	// From is the lookup that found the address. It is not part of a definition.
	From Lookup `toml:"-"`
	// Former reports whether only an earlier answer of From has the address.
	Former bool `toml:"-"`
	// Port replaces the target port of all of the service's ports, except ranges. 0 means that the
	// target port applies.
	Port uint16 `toml:"port"`
	// Ports replaces the target ports by name. It has priority over Port.
	Ports map[string]uint16 `toml:"ports"`
	// Weight is the endpoint's share of new connections, 0 (no new connections) to MaxWeight.
	// Default 1.
	Weight int `toml:"weight"`
	// Node and Zone are the names of the endpoint's node and zone, for locality.
	Node string `toml:"node"`
	Zone string `toml:"zone"`
	// Draining stops new connections. Established connections continue.
	Draining bool `toml:"draining"`
	// Backup reports whether the endpoint is used only if too few other endpoints are usable.
	Backup bool `toml:"backup"`
	// MaxConnections limits how many connections this node may have open to the endpoint, up to
	// maxMaxConnections. 0 means no limit.
	MaxConnections int `toml:"max_connections"`
	// HealthPort is the port to check. 0 means the port in the service's Health.
	HealthPort uint16 `toml:"health_port"`
	// Health determines whether the service's checks apply to the endpoint. By default they do.
	Health EndpointHealth `toml:"health"`
}

// IsUnchecked reports whether the service's checks do not apply to e. Such an endpoint is treated
// as up.
func (e *Endpoint) IsUnchecked() bool { return e.Health == NoEndpointHealth }

// CheckPort returns the port to check, or 0 if checks use the target port.
func (e *Endpoint) CheckPort(h *Health) uint16 {
	if h.IsAgent() {
		return h.Port
	}
	return cmp.Or(e.HealthPort, h.Port)
}

// MaxWeight is the maximum weight, because IPVS reports weights in 16 bits.
const MaxWeight = 65535

// maxMaxConnections is the maximum of MaxConnections, because IPVS counts connections in 32 bits.
const maxMaxConnections = math.MaxInt32

// Host returns the address of e, or its host name if the address is unknown.
func (e *Endpoint) Host() string {
	if !e.Address.IsValid() {
		return e.Name
	}
	return e.Address.String()
}

// TargetPort returns the port of e that serves p. If p is a range, TargetPort returns the first
// port.
func (e *Endpoint) TargetPort(p *Port) uint16 { return e.TargetPorts(p).First() }

// TargetPorts returns the ports of e that serve p.
func (e *Endpoint) TargetPorts(p *Port) PortRange {
	if port, ok := e.Ports[p.Name]; ok && !p.Port.IsRange() {
		return PortRange(port)
	}
	if e.Port != 0 && !p.Port.IsRange() {
		return PortRange(e.Port)
	}
	return p.TargetPort
}

// Health defines the checks of a service's endpoints.
type Health struct {
	Type           HealthType        `toml:"type"`
	Port           uint16            `toml:"port"`
	Path           string            `toml:"path"`
	Host           string            `toml:"host"`
	Status         string            `toml:"status"`
	Method         string            `toml:"method"`
	Headers        map[string]string `toml:"headers"`
	Expect         string            `toml:"expect"`
	Send           string            `toml:"send"`
	Steps          []HealthStep      `toml:"steps"`
	Command        []string          `toml:"command"`
	User           string            `toml:"user"`
	Query          string            `toml:"query"`
	CAFile         string            `toml:"ca_file"`
	CertFile       string            `toml:"cert_file"`
	KeyFile        string            `toml:"key_file"`
	Verify         bool              `toml:"verify"`
	Interval       time.Duration     `toml:"interval" range:"100ms,24h"` // a shorter interval would cause a significant load
	FastInterval   time.Duration     `toml:"fast_interval"`
	Timeout        time.Duration     `toml:"timeout"`
	Rise           int               `toml:"rise"`
	Fall           int               `toml:"fall"`
	PanicThreshold int               `toml:"panic_threshold"`
	OnFailure      OnFailure         `toml:"on_failure"`
	From           HealthFrom        `toml:"from"`
	Need           HealthNeed        `toml:"need"`
	Agent          *Agent            `toml:"agent"`
	Source         netip.Addr        `toml:"source"`
	Mark           uint32            `toml:"mark"`
}

// Override changes settings of an endpoint on behalf of an operator. It has priority over the
// endpoint's definition.
type Override struct {
	// Weight replaces the weight, unless nil.
	Weight *int `toml:"weight" json:"weight,omitempty" range:"0,65535"`
	// Draining replaces the draining flag, unless nil.
	Draining *bool `toml:"draining" json:"draining,omitempty"`
	// Until is the deadline for connections to a draining endpoint. Zero means no deadline.
	Until time.Time `toml:"until" json:"until,omitzero"`
	// By and Reason record who made the last change, and why.
	By     string `toml:"by" json:"by,omitempty"`
	Reason string `toml:"reason" json:"reason,omitempty"`
	// These fields record who set the weight and the draining flag, and why. They are "" for a part
	// if they equal By and Reason.
	WeightBy       string `toml:"weight_by" json:"weight_by,omitempty"`
	WeightReason   string `toml:"weight_reason" json:"weight_reason,omitempty"`
	DrainingBy     string `toml:"draining_by" json:"draining_by,omitempty"`
	DrainingReason string `toml:"draining_reason" json:"draining_reason,omitempty"`
	// Expires is when the override expires and is removed. Zero means never.
	Expires time.Time `toml:"expires" json:"expires,omitzero"`
	// WeightExpires and DrainingExpires are when the weight and the draining flag expire, if
	// earlier than Expires. A part whose expiry is zero lasts as long as the override.
	WeightExpires   time.Time `toml:"weight_expires" json:"weight_expires,omitzero"`
	DrainingExpires time.Time `toml:"draining_expires" json:"draining_expires,omitzero"`
}

// Verdict is the result of a target's health checks. The zero value means that no check has
// finished yet; the target is in use until then.
type Verdict string

// These are the verdicts of health checks.
const (
	HealthUnknown Verdict = ""
	HealthUp      Verdict = "up"
	HealthDown    Verdict = "down"
)

// Origin is where something is defined: a file and line, or a key in etcd and its revisions.
type Origin struct {
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Key      string `json:"key,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Created  int64  `json:"created,omitempty"`
	// Fields holds the line numbers of the definition's fields, if the source provides them. See
	// At.
	Fields FieldLines `json:"-"`
}
