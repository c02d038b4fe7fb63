package balancer

import "time"

// Policy holds the settings that frontends adopt from their service. In a Service, the values are
// those of the definition. In a Frontend, unsupported values have been replaced (see
// Capabilities.fit). Policy is comparable, and its fields are strings, integers and booleans, so a
// new field needs no code for decoding, equality and digests.
type Policy struct {
	// Scheduler chooses an endpoint for each connection. Default wrr.
	Scheduler Scheduler `toml:"scheduler"`
	// SNAT determines when the node's address replaces the client's. Default auto.
	SNAT SNAT `toml:"snat"`
	// Forward is the method of forwarding packets to endpoints. Default nat.
	Forward Forward `toml:"forward"`
	// NoEndpoints determines how clients are treated while no endpoint is usable. Default reject.
	NoEndpoints NoEndpoints `toml:"no_endpoints"`
	// DrainTimeout limits how long TCP and SCTP connections continue after their endpoint or
	// frontend is removed. Default 30s.
	DrainTimeout time.Duration `toml:"drain_timeout"`
	// ConnectTimeout limits each connection attempt to an endpoint (userspace mode). Default 1s.
	ConnectTimeout time.Duration `toml:"connect_timeout" range:"1ms,"`
	// ProxyProtocol is the version of the PROXY header for endpoints (userspace mode). A version 2
	// header is also sent at the start of the first datagram of a UDP flow. The default is none.
	ProxyProtocol ProxyProtocol `toml:"proxy_protocol"`
	// SlowStart is how long an endpoint's weight increases after the endpoint joins or recovers
	// (see Memory.Ramps). Backend.Weight already includes the effect. The default is 0, which means
	// that the full weight applies at once.
	SlowStart time.Duration `toml:"slow_start"`
	// MSS limits the size of TCP segments in both directions, in bytes. By default (0), only the
	// links limit the size.
	MSS int `toml:"mss" range:"0,65495"`
	// AcceptProxyProtocol reports whether each TCP connection begins with a PROXY header that names
	// the client (userspace mode). If so, only connections from Service.Trusted are served.
	AcceptProxyProtocol bool `toml:"accept_proxy_protocol"`
	// MaxConnectionAge ends TCP connections at this age (userspace mode). 0 means never.
	MaxConnectionAge time.Duration `toml:"max_connection_age"`
	// Source is the source address of connections to endpoints (userspace mode). Default node.
	// Kernel modes keep the client's address unless SNAT replaces it.
	Source SourceAddress `toml:"source"`
}
