package balancer

import "time"

// Policy is how a service is served, in words that its frontends take over as they are: a Service has it as written, a
// Frontend as far as the mode can honour it (Capabilities.fit). It is comparable, and its fields are strings and integers:
// decoding, equality and digests need to know nothing else of a new one.
type Policy struct {
	// Scheduler chooses among the endpoints. Default wrr.
	Scheduler Scheduler `toml:"scheduler"`
	// SNAT says when the client's address is replaced by the node's. Default auto.
	SNAT SNAT `toml:"snat"`
	// Forward is how packets reach the endpoints. Default nat.
	Forward Forward `toml:"forward"`
	// NoEndpoints says what clients see when no endpoint is up. Default reject.
	NoEndpoints NoEndpoints `toml:"no_endpoints"`
	// DrainTimeout bounds the life of TCP and SCTP connections to an endpoint that was removed, and of what is left when the
	// whole frontend goes. Default 30s.
	DrainTimeout time.Duration `toml:"drain_timeout"`
	// ConnectTimeout bounds one attempt to reach an endpoint (userspace). Default 1s.
	ConnectTimeout time.Duration `toml:"connect_timeout" range:"1ms,"`
	// ProxyProtocol sends a PROXY header to the endpoints (userspace). Default none.
	ProxyProtocol ProxyProtocol `toml:"proxy_protocol"`
	// SlowStart is how long the weight of an endpoint that joins or recovers ramps up, see Memory.Ramps. The weights of
	// backends have it in them already. Default 0: not at all.
	SlowStart time.Duration `toml:"slow_start"`
	// MSS bounds the segments that both ends of a TCP connection send, in bytes. Default 0: what their links take.
	MSS int `toml:"mss" range:"0,65495"`
}
