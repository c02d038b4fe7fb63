package balancer

import (
	"fmt"
	"math"
	"net/netip"
	"time"
)

// Service is what users write: virtual addresses and ports, and the endpoints behind them. Its fields are those of the
// [services.NAME] tables; the tags carry their names, and every default is filled in by DecodeService.
type Service struct {
	// Name is the table's name, a DNS label.
	Name Name `toml:"-"`
	// Origin is where the definition was read.
	Origin Origin `toml:"-"`
	// VIPs are the virtual addresses as written, IPv4 and IPv6 mixed, without those still to be allocated.
	VIPs []netip.Addr `toml:"-"`
	// Pools are the pools of which a VIP each is asked ("auto" and "auto:POOL" among vips; "" is the default pool).
	Pools []string `toml:"-"`
	// Allocated are the VIPs that the store has given to the service for its Pools, the oldest first. They are no part of
	// what users write: the store fills them in.
	Allocated []netip.Addr `toml:"-"`
	// Ports has at least one entry.
	Ports []Port `toml:"ports"`
	// Endpoints may be empty.
	Endpoints []Endpoint `toml:"endpoints"`
	Policy
	// Affinity keeps a client on its endpoint. Default none.
	Affinity Affinity `toml:"affinity"`
	// AffinityTimeout counts from the client's last new connection. The kernel counts it in seconds, and the longest that ipset's
	// entries live is a bit under 25 days. Default 3h.
	AffinityTimeout time.Duration `toml:"affinity_timeout" range:"1s,576h"`
	// SourceRanges are the networks that may connect; the node itself always may. Empty: all.
	SourceRanges []netip.Prefix `toml:"source_ranges"`
	// Locality prefers or demands endpoints nearby. Default any.
	Locality Locality `toml:"locality"`
	// IdleTimeout ends a connection or flow without traffic (userspace); 0 is never. Nil where users left it out:
	// never for TCP, 60s for UDP.
	IdleTimeout *time.Duration `toml:"idle_timeout"`
	// AccessLog is where ended connections are logged: JournalLog, a file, or "" for nowhere. Nil where users left it out: where
	// the node's configuration says. See LogsTo.
	AccessLog *string `toml:"access_log"`
	// Health is how endpoints are checked; nil means they are not.
	Health *Health `toml:"health"`
}

// JournalLog is the access log that is no file.
const JournalLog = "journal"

// Addresses returns all VIPs, those that users wrote and those that were allocated. It shares memory with s.
func (s *Service) Addresses() []netip.Addr {
	if len(s.Allocated) == 0 {
		return s.VIPs
	}
	return append(s.VIPs[:len(s.VIPs):len(s.VIPs)], s.Allocated...)
}

// Claims returns what s wants for itself alone, each with the field that says so. A node port has no address: it opens on
// those of every host. A nil service claims nothing, and neither does port 0, which stands for one that can't be read.
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
			claims[Key{Port: p.NodePort, Proto: p.Protocol}] = fmt.Sprintf("ports[%d].node_port", i)
		}
	}
	return claims
}

// Port is one port of a service, open on each of its VIPs.
type Port struct {
	// Name tells the ports of a service apart; needed where there are several.
	Name string `toml:"name"`
	// Port is open on the VIPs, 1 to 65535.
	Port uint16 `toml:"port" range:"1,65535"`
	// Protocol defaults to TCP.
	Protocol Protocol `toml:"protocol"`
	// TargetPort is the endpoints' port. Default: Port.
	TargetPort uint16 `toml:"target_port"`
	// NodePort, unless 0, is open on the node's own addresses too.
	NodePort uint16 `toml:"node_port"`
}

// Endpoint is one server of a service, as users write it.
type Endpoint struct {
	// Address is used by VIPs of the same family.
	Address netip.Addr `toml:"address"`
	// Port overrides the target port of every port of the service; 0 leaves it.
	Port uint16 `toml:"port"`
	// Ports overrides the target port per port name, and Port too.
	Ports map[string]uint16 `toml:"ports"`
	// Weight is its share among the endpoints, 0 (no new connections) to MaxWeight. Default 1.
	Weight int `toml:"weight"`
	// Node and Zone say where it runs, for locality.
	Node string `toml:"node"`
	Zone string `toml:"zone"`
	// Draining: no new connections, established ones live on.
	Draining bool `toml:"draining"`
	// Backup endpoints are used only when no other is up.
	Backup bool `toml:"backup"`
	// MaxConnections bounds the connections of this node to it, 1 to maxMaxConnections; 0 is no bound.
	MaxConnections int `toml:"max_connections"`
}

// MaxWeight is the greatest weight: IPVS reads weights back as 16 bits.
const MaxWeight = 65535

// maxMaxConnections is the greatest bound of connections: IPVS counts them with 32 bits.
const maxMaxConnections = math.MaxInt32

// TargetPort returns the port of e that serves p.
func (e *Endpoint) TargetPort(p *Port) uint16 {
	if port, ok := e.Ports[p.Name]; ok {
		return port
	}
	if e.Port != 0 {
		return e.Port
	}
	return p.TargetPort
}

// Health is how the endpoints of a service are checked.
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
	Command        []string          `toml:"command"`
	User           string            `toml:"user"`
	Query          string            `toml:"query"`
	CAFile         string            `toml:"ca_file"`
	CertFile       string            `toml:"cert_file"`
	KeyFile        string            `toml:"key_file"`
	Verify         bool              `toml:"verify"`
	Interval       time.Duration     `toml:"interval" range:"100ms,24h"` // below, the checks themselves would be the load
	FastInterval   time.Duration     `toml:"fast_interval"`
	Timeout        time.Duration     `toml:"timeout" range:"1ms,"`
	Rise           int               `toml:"rise"`
	Fall           int               `toml:"fall"`
	PanicThreshold int               `toml:"panic_threshold"`
	OnFailure      OnFailure         `toml:"on_failure"`
	From           HealthFrom        `toml:"from"`
	Source         netip.Addr        `toml:"source"`
	Mark           uint32            `toml:"mark"`
}

// Override is what an operator said of endpoints by hand; it wins over what their definition says.
type Override struct {
	// Weight replaces the weight, unless nil.
	Weight *int `toml:"weight" json:"weight,omitempty" range:"0,65535"`
	// Draining replaces the draining flag, unless nil.
	Draining *bool `toml:"draining" json:"draining,omitempty"`
	// Until ends the connections that are left of a drain at that time; zero is never.
	Until time.Time `toml:"until" json:"until,omitzero"`
	// By and Reason say who changed it last, and why.
	By     string `toml:"by" json:"by,omitempty"`
	Reason string `toml:"reason" json:"reason,omitempty"`
	// These say it of that part, if that was said at another time; empty is as the rest.
	WeightBy       string `toml:"weight_by" json:"weight_by,omitempty"`
	WeightReason   string `toml:"weight_reason" json:"weight_reason,omitempty"`
	DrainingBy     string `toml:"draining_by" json:"draining_by,omitempty"`
	DrainingReason string `toml:"draining_reason" json:"draining_reason,omitempty"`
	// Expires is when the override itself lapses; zero is never. Who publishes overrides removes it then.
	Expires time.Time `toml:"expires" json:"expires,omitzero"`
	// WeightExpires and DrainingExpires are when that part lapses, if that is before Expires; zero is with the rest.
	WeightExpires   time.Time `toml:"weight_expires" json:"weight_expires,omitzero"`
	DrainingExpires time.Time `toml:"draining_expires" json:"draining_expires,omitzero"`
}

// Verdict is what is known of a target's health. The zero value means unknown: used while nothing better is known.
type Verdict string

// The verdicts of health checks.
const (
	HealthUnknown Verdict = ""
	HealthUp      Verdict = "up"
	HealthDown    Verdict = "down"
)

// Origin is where a definition was read: a file and line, or a key and its revisions in etcd.
type Origin struct {
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Key      string `json:"key,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Created  int64  `json:"created,omitempty"`
	// Fields are the lines of the fields, as far as the source knows them; see At.
	Fields FieldLines `json:"-"`
}
