package balancer

import "time"

// Policy holds the settings that frontends adopt from their service. A Service has the values of
// its definition. A Frontend has values that the mode supports (see Capabilities.fit). Policy is
// comparable, and its fields are strings, integers and booleans, so a new field needs no code for
// decoding, equality and digests.
type Policy struct {
	// Scheduler chooses among the endpoints. Default wrr.
	Scheduler Scheduler `toml:"scheduler"`
	// SNAT determines when the node's address replaces the client's. Default auto.
	SNAT SNAT `toml:"snat"`
	// Forward is the method of forwarding packets to endpoints. Default nat.
	Forward Forward `toml:"forward"`
	// NoEndpoints determines how clients are treated while no endpoint is usable. Default reject.
	NoEndpoints NoEndpoints `toml:"no_endpoints"`
	// DrainTimeout limits how long TCP and SCTP connections continue after their endpoint or
	// frontend was removed. Default 30s.
	DrainTimeout time.Duration `toml:"drain_timeout"`
	// ConnectTimeout limits one connection attempt to an endpoint (userspace). Default 1s.
	ConnectTimeout time.Duration `toml:"connect_timeout" range:"1ms,"`
	// ProxyProtocol is the version of the PROXY header for endpoints (userspace mode). A version 2
	// header is also sent at the start of the first datagram of a UDP flow. The default is none.
	ProxyProtocol ProxyProtocol `toml:"proxy_protocol"`
	// SlowStart is the duration of the ramp of an endpoint's weight after it joins or recovers (see
	// Memory.Ramps). The weights of backends already include it. The default is 0, which means no
	// ramp.
	SlowStart time.Duration `toml:"slow_start"`
	// MSS limits the TCP segments of both ends, in bytes. Default 0: the limit of their links.
	MSS int `toml:"mss" range:"0,65495"`
	// AcceptProxyProtocol reports whether each TCP connection begins with a PROXY header, which
	// names the client (userspace). Only connections from Service.Trusted are served then.
	AcceptProxyProtocol bool `toml:"accept_proxy_protocol"`
	// MaxConnectionAge ends TCP connections at this age (userspace). 0 means never.
	MaxConnectionAge time.Duration `toml:"max_connection_age"`
	// Source is the source address of connections to endpoints (userspace). Default node. Kernel
	// modes keep the client's address unless SNAT replaces it.
	Source SourceAddress `toml:"source"`
}
