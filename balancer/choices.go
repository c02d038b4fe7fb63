package balancer

// Scheduler is how an endpoint is chosen for a new connection.
type Scheduler string

// The schedulers. Which of them a mode can do is part of its Capabilities.
const (
	RoundRobin         Scheduler = "rr"
	WeightedRoundRobin Scheduler = "wrr"
	Random             Scheduler = "random"
	LeastConn          Scheduler = "lc"
	WeightedLeastConn  Scheduler = "wlc"
	SourceHash         Scheduler = "sh"
	DestinationHash    Scheduler = "dh"
	Maglev             Scheduler = "mh"
	ShortestDelay      Scheduler = "sed"
	NeverQueue         Scheduler = "nq"
)

// Values lists what users may write.
func (Scheduler) Values() []string {
	return []string{"rr", "wrr", "random", "lc", "wlc", "sh", "dh", "mh", "sed", "nq"}
}

// Synonyms implements [decode.Synonyms] with the names of haproxy, nginx, gobetween and Envoy.
func (Scheduler) Synonyms() map[string]string {
	return map[string]string{
		"roundrobin": "wrr", "staticrr": "wrr", "weightedroundrobin": "wrr", "weighted": "wrr", "leastconn": "wlc", "leastconnections": "wlc",
		"leastrequest": "wlc", "source": "sh", "sourcehash": "sh", "iphash": "sh", "maglev": "mh", "maglevhash": "mh",
	}
}

// SharesByWeight reports whether an endpoint's share of the connections to a VIP follows its weight. With every scheduler an
// endpoint of weight 0 gets none.
func (s Scheduler) SharesByWeight() bool {
	return s != RoundRobin && s != LeastConn && s != DestinationHash
}

// ModeNames lists the modes that users may ask a node for.
func ModeNames() []string { return []string{"auto", "ipvs", "nftables", "iptables", "userspace"} }

// Affinity is what keeps a client on its endpoint.
type Affinity string

// The affinities.
const (
	NoAffinity       Affinity = "none"
	ClientIPAffinity Affinity = "client_ip"
)

// Values lists what users may write.
func (Affinity) Values() []string { return []string{"none", "client_ip"} }

// SNAT says when the client's address is replaced by the node's on the way to the endpoint.
type SNAT string

// The choices: auto replaces it only where replies would miss the node.
const (
	AutoSNAT   SNAT = "auto"
	AlwaysSNAT SNAT = "always"
	NeverSNAT  SNAT = "never"
)

// Values lists what users may write.
func (SNAT) Values() []string { return []string{"auto", "always", "never"} }

// Forward is how packets reach the endpoints.
type Forward string

// The ways to forward: address translation, direct routing (same link), and a tunnel.
const (
	NATForward    Forward = "nat"
	DRForward     Forward = "dr"
	TunnelForward Forward = "tunnel"
)

// Values lists what users may write.
func (Forward) Values() []string { return []string{"nat", "dr", "tunnel"} }

// Locality prefers or demands endpoints nearby.
type Locality string

// The localities. NodeOnly without an endpoint on this node counts as having no endpoints.
const (
	AnyLocality Locality = "any"
	PreferZone  Locality = "prefer_zone"
	PreferNode  Locality = "prefer_node"
	NodeOnly    Locality = "node_only"
)

// Values lists what users may write.
func (Locality) Values() []string { return []string{"any", "prefer_zone", "prefer_node", "node_only"} }

// NoEndpoints is what clients see when no endpoint is up.
type NoEndpoints string

// The choices: a TCP reset or ICMP port unreachable, or silence.
const (
	RejectClients NoEndpoints = "reject"
	DropClients   NoEndpoints = "drop"
)

// Values lists what users may write.
func (NoEndpoints) Values() []string { return []string{"reject", "drop"} }

// ProxyProtocol is the version of the PROXY header that endpoints get.
type ProxyProtocol string

// The versions.
const (
	NoProxyProtocol ProxyProtocol = "none"
	ProxyProtocolV1 ProxyProtocol = "v1"
	ProxyProtocolV2 ProxyProtocol = "v2"
)

// Values lists what users may write.
func (ProxyProtocol) Values() []string { return []string{"none", "v1", "v2"} }

// HealthType is a kind of health check.
type HealthType string

// The kinds of checks.
const (
	TCPHealth   HealthType = "tcp"
	HTTPHealth  HealthType = "http"
	HTTPSHealth HealthType = "https"
	GRPCHealth  HealthType = "grpc"
	DNSHealth   HealthType = "dns"
	UDPHealth   HealthType = "udp"
	ExecHealth  HealthType = "exec"
)

// Values lists what users may write.
func (HealthType) Values() []string {
	return []string{"tcp", "http", "https", "grpc", "dns", "udp", "exec"}
}

// OnFailure is what happens to established connections of an endpoint that fails its checks. The zero value is the
// default: keep for TCP and SCTP, cut for UDP.
type OnFailure string

// The choices.
const (
	KeepOnFailure OnFailure = "keep"
	CutOnFailure  OnFailure = "cut"
)

// Values lists what users may write.
func (OnFailure) Values() []string { return []string{"keep", "cut"} }

// HealthFrom is who checks: each node for itself, or the fleet together.
type HealthFrom string

// The choices.
const (
	HealthFromNode  HealthFrom = "node"
	HealthFromFleet HealthFrom = "fleet"
)

// Values lists what users may write.
func (HealthFrom) Values() []string { return []string{"node", "fleet"} }
