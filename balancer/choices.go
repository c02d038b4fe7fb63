package balancer

// Scheduler is the method that chooses an endpoint for each new connection.
type Scheduler string

// These are the schedulers. Each mode supports some of them (see [Capabilities.Nearest]).
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

// Values lists the possible values.
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

// SharesByWeight reports whether an endpoint's share of the connections follows its weight. With
// any scheduler, an endpoint with weight 0 gets no connections.
func (s Scheduler) SharesByWeight() bool {
	return s != RoundRobin && s != LeastConn && s != DestinationHash
}

// ModeNames lists the modes that users may choose for a node.
func ModeNames() []string { return []string{"auto", "ipvs", "nftables", "iptables", "userspace"} }

// Affinity is the rule that keeps a client on its endpoint.
type Affinity string

// These are the values of Affinity.
const (
	NoAffinity       Affinity = "none"
	ClientIPAffinity Affinity = "client_ip"
)

// Values lists the possible values.
func (Affinity) Values() []string { return []string{"none", "client_ip"} }

// SNAT determines when the node's address replaces the client's in packets to the endpoint.
type SNAT string

// These are the values of SNAT. AutoSNAT replaces the address only if replies would otherwise
// bypass the node.
const (
	AutoSNAT   SNAT = "auto"
	AlwaysSNAT SNAT = "always"
	NeverSNAT  SNAT = "never"
)

// Values lists the possible values.
func (SNAT) Values() []string { return []string{"auto", "always", "never"} }

// Forward is the method of forwarding packets to the endpoints.
type Forward string

// These are the methods: address translation, direct routing on the same link, and a tunnel.
const (
	NATForward    Forward = "nat"
	DRForward     Forward = "dr"
	TunnelForward Forward = "tunnel"
)

// Values lists the possible values.
func (Forward) Values() []string { return []string{"nat", "dr", "tunnel"} }

// Direct reports whether endpoints reply to clients directly, so only one direction of each
// connection passes this node.
func (f Forward) Direct() bool { return f == DRForward || f == TunnelForward }

// EndpointHealth determines whether a service's checks apply to an endpoint.
type EndpointHealth string

// NoEndpointHealth excludes an endpoint from checks. The zero value includes it.
const NoEndpointHealth EndpointHealth = "none"

// Values lists the possible values.
func (EndpointHealth) Values() []string { return []string{string(NoEndpointHealth)} }

// Locality determines whether nearby endpoints are preferred or required.
type Locality string

// These are the localities. With NodeOnly, a service without an endpoint on this node is treated as
// a service without endpoints.
const (
	AnyLocality Locality = "any"
	PreferZone  Locality = "prefer_zone"
	PreferNode  Locality = "prefer_node"
	NodeOnly    Locality = "node_only"
)

// Values lists the possible values.
func (Locality) Values() []string { return []string{"any", "prefer_zone", "prefer_node", "node_only"} }

// NoEndpoints determines how clients are treated while no endpoint is usable.
type NoEndpoints string

// RejectClients sends a TCP reset or an ICMP port unreachable. DropClients sends nothing.
const (
	RejectClients NoEndpoints = "reject"
	DropClients   NoEndpoints = "drop"
)

// Values lists the possible values.
func (NoEndpoints) Values() []string { return []string{"reject", "drop"} }

// ProxyProtocol is the version of the PROXY header that endpoints receive.
type ProxyProtocol string

// These are the versions of the PROXY header.
const (
	NoProxyProtocol ProxyProtocol = "none"
	ProxyProtocolV1 ProxyProtocol = "v1"
	ProxyProtocolV2 ProxyProtocol = "v2"
)

// Values lists the possible values.
func (ProxyProtocol) Values() []string { return []string{"none", "v1", "v2"} }

// SourceAddress selects the source address of connections to endpoints, in a mode that opens these
// connections itself.
type SourceAddress string

// NodeSource is this node's address. ClientSource is the client's address.
const (
	NodeSource   SourceAddress = "node"
	ClientSource SourceAddress = "client"
)

// Values lists the possible values.
func (SourceAddress) Values() []string { return []string{"node", "client"} }

// HealthType is a type of health check.
type HealthType string

// These are the types of health checks.
const (
	TCPHealth   HealthType = "tcp"
	HTTPHealth  HealthType = "http"
	HTTPSHealth HealthType = "https"
	GRPCHealth  HealthType = "grpc"
	DNSHealth   HealthType = "dns"
	UDPHealth   HealthType = "udp"
	ExecHealth  HealthType = "exec"
)

// Values lists the possible values.
func (HealthType) Values() []string {
	return []string{"tcp", "http", "https", "grpc", "dns", "udp", "exec"}
}

// OnFailure determines whether connections to an endpoint survive when its checks fail. By default,
// TCP and SCTP connections survive, and UDP flows end.
type OnFailure string

// These are the values of OnFailure. The zero value means the default.
const (
	KeepOnFailure OnFailure = "keep"
	CutOnFailure  OnFailure = "cut"
)

// Values lists the possible values.
func (OnFailure) Values() []string { return []string{"keep", "cut"} }

// HealthNeed determines how many of a service's checks an endpoint must pass. The zero value means
// all.
type HealthNeed string

// These are the values of HealthNeed.
const (
	NeedAllHealth HealthNeed = "all"
	NeedAnyHealth HealthNeed = "any"
)

// Values lists the possible values.
func (HealthNeed) Values() []string { return []string{"all", "any"} }

// HealthFrom determines whether each node runs the checks itself, or the nodes share the results.
type HealthFrom string

// These are the values of HealthFrom.
const (
	HealthFromNode  HealthFrom = "node"
	HealthFromFleet HealthFrom = "fleet"
)

// Values lists the possible values.
func (HealthFrom) Values() []string { return []string{"node", "fleet"} }
