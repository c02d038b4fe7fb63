package balancer

// Capabilities is what a mode can honour on this host. Compile reports what a service asks beyond it as problems; the
// mode then serves the nearest.
type Capabilities struct {
	// Mode is the mode's name, for messages.
	Mode string
	// Protocols are those it can serve; services on others are not served at all.
	Protocols []Protocol
	// Nearest names, for each scheduler that it can't do, what it does instead. A scheduler that is absent here is
	// honoured, exactly or by an equivalent.
	Nearest map[Scheduler]string
	// Forwards are the ways to forward that it can do.
	Forwards []Forward
	// KeepsSource: the client's address can reach the endpoint (snat = "never").
	KeepsSource bool
	// ProxyProtocol: it can send PROXY headers.
	ProxyProtocol bool
	// Timeouts: it can honour connect_timeout and idle_timeout.
	Timeouts bool
	// MaxConnections: it can bound connections per endpoint.
	MaxConnections bool
	// DropsClients: it can leave clients without any answer (no_endpoints = "drop").
	DropsClients bool
	// LoopbackVIPs: forwarded clients apart, VIPs in 127.0.0.0/8 and ::1 can be served, and endpoints there reached.
	LoopbackVIPs bool
}
