package api

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
)

// Service is a service with its state on this node.
type Service struct {
	Name   balancer.Name   `json:"name"`
	Origin balancer.Origin `json:"origin"`
	// Definition holds the fields that differ from their defaults, by TOML name.
	Definition map[string]any `json:"definition"`
	// Check holds the rules of the service's only or first health check. It is nil if there is
	// none.
	Check *CheckRules `json:"check,omitempty"`
	// Checks holds the rules of all health checks if there are several.
	Checks []CheckRules `json:"checks,omitempty"`
	VIPs   []string     `json:"vips"`
	// Withdrawn lists the VIPs that this host does not hold because no endpoint of their services
	// is usable.
	Withdrawn []string   `json:"withdrawn,omitempty"`
	Ports     []Port     `json:"ports"`
	Endpoints []Endpoint `json:"endpoints"`
	// Lookups lists the lookups that find the service's endpoints.
	Lookups []Lookup `json:"lookups,omitempty"`
	// Frontends lists the frontends whose keys this service holds.
	Frontends []Frontend         `json:"frontends"`
	Problems  []balancer.Problem `json:"problems"`
	// Refused reports whether no definition of the service was ever accepted. Problems contains the
	// reason. A refused service has only a name.
	Refused bool `json:"refused,omitempty"`
}

// Lookup is a lookup of a service's endpoints.
type Lookup struct {
	Kind balancer.LookupKind `json:"kind"`
	// Name is a DNS name, or a program and its arguments.
	Name string `json:"name"`
	// Endpoints is the number of endpoints in use, from the last successful lookup and from earlier
	// lookups. Failure is the reason why the latest lookup failed.
	Endpoints int    `json:"endpoints"`
	Failure   string `json:"failure,omitempty"`
}

// LookupsOf returns a service's lookups, sorted.
func LookupsOf(s *balancer.Service, in *balancer.Inputs) (all []Lookup) {
	for _, l := range slices.SortedFunc(maps.Keys(balancer.LookupsOf(s, in)), balancer.Lookup.Compare) {
		one := Lookup{Kind: l.Kind, Name: l.String()}
		if r := in.Resolved.At(balancer.LookupID{Service: s.Name, Lookup: l}); r != nil {
			one.Endpoints, one.Failure = len(r.Records)+len(r.Former), r.Failure
		}
		all = append(all, one)
	}
	return all
}

// CheckRules holds the rules of a service's health check, including defaults.
type CheckRules struct {
	Type           balancer.HealthType `json:"type"`
	From           balancer.HealthFrom `json:"from"`
	Interval       time.Duration       `json:"interval_ns"`
	FastInterval   time.Duration       `json:"fast_interval_ns"`
	Timeout        time.Duration       `json:"timeout_ns"`
	Rise           int                 `json:"rise"`
	Fall           int                 `json:"fall"`
	PanicThreshold int                 `json:"panic_threshold,omitempty"`
	Need           balancer.HealthNeed `json:"need,omitempty"`
}

// RulesOf returns the rules of s's first check, or nil if s has no check. If s has several checks,
// all holds each check's rules.
func RulesOf(s *balancer.Service) (first *CheckRules, all []CheckRules) {
	for _, h := range s.Checks() {
		all = append(all, CheckRules{
			Type: h.Type, From: h.From, Interval: h.Interval, FastInterval: h.FastInterval, Timeout: h.Timeout, Rise: h.Rise, Fall: h.Fall,
			PanicThreshold: h.PanicThreshold,
		})
	}
	if len(all) > 1 {
		for i := range all {
			all[i].Need = s.Health.Need
		}
	}
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return &all[0], nil
	}
	return &all[0], all
}

// Port is one of a service's ports.
type Port struct {
	Name       string             `json:"name,omitempty"`
	Port       balancer.PortRange `json:"port"`
	Protocol   balancer.Protocol  `json:"protocol"`
	TargetPort balancer.PortRange `json:"target_port"`
	NodePort   uint16             `json:"node_port,omitempty"`
	// Up is the number of endpoints that get new connections at this port. Of is the total number
	// of endpoints.
	Up int `json:"up"`
	Of int `json:"of"`
	// Connections, In and Out count since the daemon started. In and Out are omitted if they are 0,
	// or if the kernel does not count bytes.
	Connections uint64 `json:"connections"`
	In          uint64 `json:"bytes_in,omitzero"`
	Out         uint64 `json:"bytes_out,omitzero"`
}

// Endpoint is a service's endpoint at one of the service's ports, with its definition and state.
type Endpoint struct {
	Service balancer.Name `json:"service"`
	// Address is the target of connections, as ADDRESS:PORT. For a port range, PORT is the first
	// port, which identifies the endpoint, and TargetPorts is the range. Otherwise TargetPorts is
	// 0.
	Address     string             `json:"address"`
	TargetPorts balancer.PortRange `json:"target_ports,omitzero"`
	// Name is the endpoint's DNS name, if a lookup found the address.
	Name string `json:"name,omitempty"`
	Port string `json:"port,omitempty"`
	Node string `json:"node,omitempty"`
	Zone string `json:"zone,omitempty"`
	// Configured is the defined weight. Weight is the effective weight.
	Configured int `json:"configured_weight"`
	Weight     int `json:"weight"`
	// State is active if the endpoint gets new connections. Otherwise it is the reason why it gets
	// none.
	State  balancer.BackendState `json:"state"`
	Backup bool                  `json:"backup,omitempty"`
	// Override is the manual override.
	Override *balancer.Override `json:"override,omitempty"`
	Health   balancer.Verdict   `json:"health,omitempty"`
	// Check is the result of the endpoint's health check. It is nil if this node does not check the
	// endpoint.
	Check *Check `json:"check,omitempty"`
	// Unchecked is the reason why this node does not check the endpoint although the service has a
	// health check, or "".
	Unchecked string `json:"unchecked,omitempty"`
	// Agent is the latest answer from the endpoint's agent, or nil.
	Agent *balancer.AgentAnswer `json:"agent,omitempty"`
	// Ramp is the percentage of the weight during a slow start, or 0.
	Ramp int `json:"ramp_percent,omitempty"`
	// Ejection is set while the endpoint gets no new connections because connection attempts to it
	// have failed.
	Ejection *balancer.Ejection `json:"ejection,omitempty"`
	// Until is the time when vipd ends the endpoint's remaining connections.
	Until time.Time `json:"until,omitzero"`
	// Cut reports whether the endpoint's connections were ended when its checks failed.
	Cut bool `json:"cut,omitempty"`
	// Active counts open connections. Connections counts all connections since the daemon started.
	Active      uint64 `json:"active"`
	Connections uint64 `json:"connections"`
	// Unanswered counts the new TCP and SCTP connections since the daemon started that the endpoint
	// did not answer. In userspace mode, it counts failed connection attempts.
	Unanswered uint64 `json:"unanswered"`
}

// Place returns e's address with all its ports, such as 192.168.1.11:8000-8999.
func (e *Endpoint) Place() string { return placeOf(e.Address, e.TargetPorts) }

// RangeFrom returns the TargetPorts of an endpoint whose first port for p is first.
func RangeFrom(first uint16, p *balancer.Port) balancer.PortRange {
	if !p.Port.IsRange() {
		return 0
	}
	return balancer.NewPortRange(first, first+uint16(p.Port.Len()-1))
}

// placeOf replaces an address's port with a port range, unless the range is 0.
func placeOf(address string, ports balancer.PortRange) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !ports.IsRange() {
		return address
	}
	return balancer.Key{Addr: at.Addr(), Port: ports}.Place()
}

// Check is the result of an endpoint's health check. Answers with watch=1 omit Last, Next and
// Checking, because they change at each check.
type Check struct {
	// At is the probed address and port. Type is the kind of probe.
	At   string              `json:"at"`
	Type balancer.HealthType `json:"type"`
	// Since is the time when the verdict last changed.
	Since time.Time `json:"since,omitzero"`
	// Last is when the latest check ended. LastOutcome is its result: passed, failed or not run.
	// LastText describes the result.
	Last        time.Time `json:"last,omitzero"`
	LastOutcome string    `json:"last_outcome,omitempty"`
	LastText    string    `json:"last_text,omitempty"`
	// Against counts the consecutive latest results that contradict the verdict. After Needed such
	// results, the verdict changes.
	Against int `json:"against,omitempty"`
	Needed  int `json:"needed"`
	// Next is the time of the next check. Checking reports whether a check is running.
	Next     time.Time `json:"next,omitzero"`
	Checking bool      `json:"checking,omitempty"`
	// Checks holds the results of this node's checks if the service has several, each with its
	// Verdict. The other fields then describe the check that decides or contradicts the verdict.
	Checks  []Check          `json:"checks,omitempty"`
	Verdict balancer.Verdict `json:"verdict,omitempty"`
	// Fleet is the fleet's shared result, or nil if each node uses only its own checks. If it is
	// set, LastText contains the nodes' votes, and Next is set only if this node checks.
	Fleet *FleetCheck `json:"fleet,omitempty"`
}

// FleetCheck is the result for an endpoint that a fleet's nodes share.
type FleetCheck struct {
	// Alone reports whether this node uses only its own checks because it can't rely on other
	// nodes: etcd is unavailable, or no node checks.
	Alone bool `json:"alone,omitempty"`
	// Checkers lists the nodes that check the endpoint. Votes holds their verdicts.
	Checkers []balancer.NodeName               `json:"checkers"`
	Votes    map[balancer.NodeName]quorum.Vote `json:"votes"`
	// Here describes this node's verdict if it differs from the fleet's.
	Here string `json:"here,omitempty"`
}

// Frontend is one compiled frontend, with the dataplane's progress.
type Frontend struct {
	Key      balancer.Key  `json:"key"`
	NodePort bool          `json:"node_port,omitempty"`
	Service  balancer.Name `json:"service"`
	Port     string        `json:"port,omitempty"`
	// Scheduler and Backends are the compiled values.
	Scheduler balancer.Scheduler `json:"scheduler"`
	Backends  []Backend          `json:"backends"`
	// Forward is dr or tunnel. It is empty for nat.
	Forward balancer.Forward `json:"forward,omitempty"`
	// Source is the compiled source address for connections to endpoints. It is omitted if it is
	// this node's address.
	Source balancer.SourceAddress `json:"source,omitempty"`
	// State is applied, pending or failing. Error describes the last failure.
	State string `json:"state"`
	Error string `json:"error,omitempty"`
}

// Backend is one of a frontend's backends.
type Backend struct {
	Address string                `json:"address"`
	State   balancer.BackendState `json:"state"`
	Weight  int                   `json:"weight"`
	Until   time.Time             `json:"until,omitzero"`
}
