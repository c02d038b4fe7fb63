package api

import (
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
	"vipd/cmd/internal/events"
	"vipd/dataplane"
	"vipd/dataplane/explain"
)

// Error is the body of every answer that is not 200.
type Error struct {
	// Message is a sentence that says what is wrong and what to do.
	Message string `json:"error"`
}

// Status is the node as a whole.
type Status struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Zone    string    `json:"zone,omitempty"`
	Started time.Time `json:"started"`
	Mode    Mode      `json:"mode"`
	Store   Store     `json:"store"`
	Sync    Sync      `json:"sync"`
	// Ready: the first complete state is applied.
	Ready     bool `json:"ready"`
	Services  int  `json:"services"`
	Frontends int  `json:"frontends"`
	Endpoints int  `json:"endpoints"`
	// Health counts what checks find.
	Health HealthCount `json:"health"`
	// Overrides is of how many endpoints, or addresses of services, something is said by hand, such as a drain; ByHand are the first.
	Overrides int              `json:"overrides,omitempty"`
	ByHand    []OverrideTarget `json:"by_hand,omitempty"`
	// Ownership says how owning VIPs goes on this host; "" means it owns none.
	Ownership string `json:"ownership,omitempty"`
	// Confirmed are the hosts that confirm this one as an owner, with the age of each confirmation in seconds; -1 means none.
	Confirmed map[string]float64 `json:"confirmed,omitempty"`
	// Addresses are the VIPs and who holds them.
	Addresses []Address          `json:"addresses"`
	Problems  []balancer.Problem `json:"problems"`
}

// HealthCount sums up the health of all endpoints, each at each port.
type HealthCount struct {
	// Checked endpoints have a health check; of those, Down fail it, and of Unknown no result is there yet.
	Checked int `json:"checked"`
	// Endpoints is of how many endpoints they are, all ports together.
	Endpoints int `json:"endpoints"`
	Down      int `json:"down"`
	Unknown   int `json:"unknown"`
	// Unable checks can't be run by this node: what it knows of the endpoints may be old.
	Unable int `json:"unable,omitempty"`
	// Services lists the services with endpoints that are down, with the health of each port.
	Services []ServiceHealth `json:"services,omitempty"`
	// Panic are the services of which so few endpoints are healthy that all are used.
	Panic []balancer.Name `json:"panic,omitempty"`
	// Out are the services of which all endpoints of a port fail, so that its clients are refused.
	Out []balancer.Name `json:"out,omitempty"`
}

// ServiceHealth is the health of one service, per port.
type ServiceHealth struct {
	Service balancer.Name `json:"service"`
	// Ports counts the checked endpoints: those that are not down, of all.
	Ports Use `json:"ports"`
}

// Mode is which dataplane is in use, and why.
type Mode struct {
	InUse string `json:"in_use"`
	// Wanted is what the configuration says.
	Wanted string `json:"wanted"`
	// Reason says why this one is in use, with the reason of each no.
	Reason string `json:"reason"`
	// Fallback: the one in use is not the one that was wanted.
	Fallback bool `json:"fallback"`
	// Detail is the mode's own: for userspace, how traffic is intercepted and why.
	Detail string `json:"detail,omitempty"`
}

// Store is where services come from, and how it is.
type Store struct {
	Kind string `json:"kind"`
	// Place is the file, folder or endpoints.
	Place     string `json:"place"`
	Connected bool   `json:"connected"`
	// EverRead: it could be read at least once since the daemon started. Until then there is no last good state.
	EverRead bool   `json:"ever_read"`
	Error    string `json:"error,omitempty"`
	Revision int64  `json:"revision"`
}

// Sync is how far the dataplane is.
type Sync struct {
	// Wanted and Applied are store revisions.
	Wanted  int64 `json:"wanted"`
	Applied int64 `json:"applied"`
	// Pending counts the frontends that are not yet as wanted; Failing those of them in backoff.
	Pending int `json:"pending"`
	Failing int `json:"failing"`
	// Last is the last sync that had work to do.
	Last         time.Time     `json:"last,omitzero"`
	LastDuration time.Duration `json:"last_duration_ns"`
	LastChanges  int           `json:"last_changes"`
	LastError    string        `json:"last_error,omitempty"`
	// Repairs counts objects that other programs had changed, and that vipd has repaired.
	Repairs int `json:"drift_repairs"`
}

// Address is one VIP on this node.
type Address struct {
	Address string `json:"address"`
	// Held says who makes it local: the interface where vipd put it, "host" (it is the host's own anyway), or "none".
	Held string `json:"held"`
	// Owned: one host of several has it (hold = "one"), which is this one where Held is "host".
	Owned bool `json:"owned,omitempty"`
	// Note says what follows or what is wrong.
	Note string `json:"note,omitempty"`
}

// Service is one service with all that is known of it here.
type Service struct {
	Name   balancer.Name   `json:"name"`
	Origin balancer.Origin `json:"origin"`
	// Definition has the fields that are not at their default, by their names in TOML.
	Definition map[string]any `json:"definition"`
	// Check is how its endpoints are checked; nil means they are not.
	Check *CheckRules `json:"check,omitempty"`
	VIPs  []string    `json:"vips"`
	// Withdrawn are those of VIPs that this host does not hold, as no endpoint of the services on it is usable.
	Withdrawn []string   `json:"withdrawn,omitempty"`
	Ports     []Port     `json:"ports"`
	Endpoints []Endpoint `json:"endpoints"`
	// Frontends are the keys that this service has, and their state.
	Frontends []Frontend         `json:"frontends"`
	Problems  []balancer.Problem `json:"problems"`
	// Refused reports whether no definition of the service was ever accepted, for a reason in Problems. It has nothing but its name then.
	Refused bool `json:"refused,omitempty"`
}

// CheckRules say how the endpoints of a service are checked, with the defaults of what it does not say.
type CheckRules struct {
	Type           balancer.HealthType `json:"type"`
	From           balancer.HealthFrom `json:"from"`
	Interval       time.Duration       `json:"interval_ns"`
	FastInterval   time.Duration       `json:"fast_interval_ns"`
	Timeout        time.Duration       `json:"timeout_ns"`
	Rise           int                 `json:"rise"`
	Fall           int                 `json:"fall"`
	PanicThreshold int                 `json:"panic_threshold,omitempty"`
}

// RulesOf returns how h checks; nil where it is nil.
func RulesOf(h *balancer.Health) *CheckRules {
	if h == nil {
		return nil
	}
	return &CheckRules{
		Type: h.Type, From: h.From, Interval: h.Interval, FastInterval: h.FastInterval, Timeout: h.Timeout, Rise: h.Rise, Fall: h.Fall,
		PanicThreshold: h.PanicThreshold,
	}
}

// Port is one port of a service.
type Port struct {
	Name       string            `json:"name,omitempty"`
	Port       uint16            `json:"port"`
	Protocol   balancer.Protocol `json:"protocol"`
	TargetPort uint16            `json:"target_port"`
	NodePort   uint16            `json:"node_port,omitempty"`
	// Up endpoints, of Of, get new connections at this port.
	Up int `json:"up"`
	Of int `json:"of"`
	// Connections, In and Out count since the daemon started. In and Out are left out where there are none, or where the
	// kernel does not count bytes.
	Connections uint64 `json:"connections"`
	In          uint64 `json:"bytes_in,omitzero"`
	Out         uint64 `json:"bytes_out,omitzero"`
}

// Endpoint is one endpoint of a service, at one of its ports, as written and as it works.
type Endpoint struct {
	Service balancer.Name `json:"service"`
	// Address is ADDRESS:PORT where connections go.
	Address string `json:"address"`
	Port    string `json:"port,omitempty"`
	Node    string `json:"node,omitempty"`
	Zone    string `json:"zone,omitempty"`
	// Configured is the weight as written; Weight the effective one.
	Configured int `json:"configured_weight"`
	Weight     int `json:"weight"`
	// State says whether it gets new connections, and why not.
	State  balancer.BackendState `json:"state"`
	Backup bool                  `json:"backup,omitempty"`
	// Override is what an operator said by hand.
	Override *balancer.Override `json:"override,omitempty"`
	Health   balancer.Verdict   `json:"health,omitempty"`
	// Check is what its health check has found; nil means this node does not check it.
	Check *Check `json:"check,omitempty"`
	// Unchecked is why this node does not check it though its service has a health check; "" means it does, or has none.
	Unchecked string `json:"unchecked,omitempty"`
	// Ramp is how many percent of its weight it has come to, while it starts slowly; 0 means it does not.
	Ramp int `json:"ramp_percent,omitempty"`
	// Ejection is there while connects to it fail, so that it gets no new ones.
	Ejection *balancer.Ejection `json:"ejection,omitempty"`
	// Until is when what is left of its connections is ended.
	Until time.Time `json:"until,omitzero"`
	// Cut: it is down, and its connections were ended when it went down.
	Cut bool `json:"cut,omitempty"`
	// Active connections and all since the daemon started.
	Active      uint64 `json:"active"`
	Connections uint64 `json:"connections"`
	// Unanswered are the new connections of TCP and SCTP that it did not answer since the daemon started; in userspace mode, the
	// connects to it that failed.
	Unanswered uint64 `json:"unanswered"`
}

// Check is what the health check of an endpoint has found. Watchers are not told of each check: Last, Next and
// Checking are left out there.
type Check struct {
	// At is the address and port that are probed, and Type how.
	At   string              `json:"at"`
	Type balancer.HealthType `json:"type"`
	// Since is when the verdict was reached.
	Since time.Time `json:"since,omitzero"`
	// Last is when the latest check was over, LastOutcome what it came to (passed, failed, not run), and LastText what was
	// seen, in words.
	Last        time.Time `json:"last,omitzero"`
	LastOutcome string    `json:"last_outcome,omitempty"`
	LastText    string    `json:"last_text,omitempty"`
	// Against counts the latest results in a row that speak against the verdict; Needed of them change it.
	Against int `json:"against,omitempty"`
	Needed  int `json:"needed"`
	// Next is when it is checked next; Checking: it is now.
	Next     time.Time `json:"next,omitzero"`
	Checking bool      `json:"checking,omitempty"`
	// Fleet is what the fleet has found, where it checks the endpoint together; nil means each node checks it for itself. Then
	// LastText says who has found what, and Next is there where this node is one of those who check.
	Fleet *FleetCheck `json:"fleet,omitempty"`
}

// FleetCheck is what the nodes of a fleet have found of an endpoint together.
type FleetCheck struct {
	// Alone: this node can't rely on the others (etcd is away, or no node checks), and goes by its own checks.
	Alone bool `json:"alone,omitempty"`
	// Checkers are the nodes that check it, Votes what they have found, by node.
	Checkers []balancer.NodeName               `json:"checkers"`
	Votes    map[balancer.NodeName]quorum.Vote `json:"votes"`
	// Here says what this node has found, where that is not what the fleet goes by.
	Here string `json:"here,omitempty"`
}

// Frontend is one compiled key and how far the dataplane is with it.
type Frontend struct {
	Key      balancer.Key  `json:"key"`
	NodePort bool          `json:"node_port,omitempty"`
	Service  balancer.Name `json:"service"`
	Port     string        `json:"port,omitempty"`
	// Scheduler and Backends are as compiled.
	Scheduler balancer.Scheduler `json:"scheduler"`
	Backends  []Backend          `json:"backends"`
	// State is applied, pending or failing; Error the last failure.
	State string `json:"state"`
	Error string `json:"error,omitempty"`
}

// Backend is one backend of a frontend.
type Backend struct {
	Address string                `json:"address"`
	State   balancer.BackendState `json:"state"`
	Weight  int                   `json:"weight"`
	Until   time.Time             `json:"until,omitzero"`
}

// Reload is the result of a reload.
type Reload struct {
	Revision int64              `json:"revision"`
	Services int                `json:"services"`
	Problems []balancer.Problem `json:"problems"`
	// Unapplied reports whether Revision was not in the dataplane yet when vipd stopped waiting for it.
	Unapplied bool `json:"unapplied,omitempty"`
	ReloadChanges
}

// ReloadChanges are the services of files that differ from those that the last reload before showed, or the start of vipd, by name.
type ReloadChanges struct {
	Added   []balancer.Name `json:"added,omitempty"`
	Changed []balancer.Name `json:"changed,omitempty"`
	Removed []balancer.Name `json:"removed,omitempty"`
	// Kept are the services that stay in their last good state because of an error.
	Kept []balancer.Name `json:"kept,omitempty"`
	// Vanished are those of Kept that nothing defines any more: a reload with ReloadPrune removes them.
	Vanished []balancer.Name `json:"vanished,omitempty"`
}

// ReloadFlag changes what a reload does.
type ReloadFlag string

// The flags of a reload.
const (
	// ReloadAllowEmpty believes a main file that is empty.
	ReloadAllowEmpty ReloadFlag = "allow_empty"
	// ReloadPrune removes the services that nothing defines any more, in spite of errors.
	ReloadPrune ReloadFlag = "prune"
)

// Difference is one key that does not run as wanted, or, without a key, what frontends share.
type Difference struct {
	Key     balancer.Key  `json:"key,omitzero"`
	Service balancer.Name `json:"service,omitempty"`
	// What is missing, extra or differs.
	What string `json:"what"`
	// Why says since when or what failed.
	Why string `json:"why,omitempty"`
}

// OverrideRequest asks for overrides of one endpoint or of a whole node's.
type OverrideRequest struct {
	// Service and Address name endpoints of one service: ADDRESS or ADDRESS:PORT. Or Node, all endpoints on that node.
	Service balancer.Name `json:"service,omitempty"`
	Address string        `json:"address,omitempty"`
	Node    string        `json:"node,omitempty"`
	// Weight sets the weight, [balancer.ResetWeight] removes an override; Draining true drains, false ends the drain. What is nil stays as it is.
	Weight   *int  `json:"weight,omitempty"`
	Draining *bool `json:"draining,omitempty"`
	// Timeout bounds what is left of a drain's connections; 0 means no bound.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	// Expires is how long the override holds; 0 means until it is undone.
	Expires time.Duration `json:"expires_ns,omitempty"`
	By      string        `json:"by,omitempty"`
	Reason  string        `json:"reason,omitempty"`
	// Force: also where no usable endpoint is left then.
	Force bool `json:"force,omitempty"`
}

// OverrideResult says what an override came to.
type OverrideResult struct {
	// Targets are the endpoints that it is about, as SERVICE/ADDRESS.
	Targets []OverrideTarget `json:"targets"`
}

// OverrideTarget is one endpoint under an override, or that was.
type OverrideTarget struct {
	Service  balancer.Name      `json:"service"`
	Address  string             `json:"address"`
	Override *balancer.Override `json:"override,omitempty"`
}

// Event is one thing that happened on the node.
type Event = events.Event

// EventPage is a part of the journal.
type EventPage struct {
	// Missed is how many events came before these that are not kept any more, of all kinds and services. It is 0 for
	// a caller that asks for the first time.
	Missed uint64  `json:"missed,omitempty"`
	Events []Event `json:"events"`
	// Next is what to ask for next, as since: the number of the last event that was looked at.
	Next uint64 `json:"next"`
}

// CheckRequest asks for one health check of one endpoint.
type CheckRequest struct {
	Service balancer.Name `json:"service"`
	// Address is ADDRESS, or ADDRESS:PORT where the endpoint is checked at several.
	Address string `json:"address"`
}

// CheckResult is what one health check came to. It does not count for the endpoint's verdict.
type CheckResult struct {
	Service balancer.Name `json:"service"`
	// Address is ADDRESS:PORT of the endpoint, At what was probed, and Type how.
	Address string              `json:"address"`
	At      string              `json:"at"`
	Type    balancer.HealthType `json:"type"`
	// Outcome is passed, failed or not run (this host could not carry it out), and Text what was seen, in words.
	Outcome string        `json:"outcome"`
	Text    string        `json:"text"`
	Took    time.Duration `json:"took_ns"`
	// Exchange is what was sent (>) and received (<), a line each, with what happened (*) in between.
	Exchange string `json:"exchange"`
	// Health is the verdict that stands.
	Health balancer.Verdict `json:"health,omitempty"`
}

// Connection is one live connection.
type Connection = dataplane.Connection

// Explanation is what would happen to a connection.
type Explanation struct {
	explain.Answer
	// Live is what came of a connection that the daemon opened; nil means it was not asked to.
	Live *Live `json:"live,omitempty"`
}

// Live is a connection that the daemon opened from its node.
type Live struct {
	Client netip.AddrPort `json:"client,omitzero"`
	// Endpoint is which one took it; State is the mode's word for the connection.
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	State    string         `json:"state,omitempty"`
	// Connected is how long connecting to the VIP took, and Taken how long it was until the endpoint was known.
	Connected time.Duration `json:"connected_ns"`
	Taken     time.Duration `json:"taken_ns,omitzero"`
	// Error is why it failed.
	Error string `json:"error,omitempty"`
}
