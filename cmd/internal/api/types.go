package api

import (
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/events"
	"vipd/dataplane"
	"vipd/dataplane/explain"
	"vipd/dataplane/realserver"
)

// Error is the body of each answer whose status is not 200.
type Error struct {
	// Message describes the error and its remedy.
	Message string `json:"error"`
}

// Status describes the node as a whole.
type Status struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Zone    string    `json:"zone,omitempty"`
	Started time.Time `json:"started"`
	Mode    Mode      `json:"mode"`
	Store   Store     `json:"store"`
	Sync    Sync      `json:"sync"`
	// Ready reports whether the first complete state was applied.
	Ready     bool `json:"ready"`
	Services  int  `json:"services"`
	Frontends int  `json:"frontends"`
	Endpoints int  `json:"endpoints"`
	// Health summarizes the results of health checks.
	Health HealthCount `json:"health"`
	// Overrides is the number of endpoints, or services' addresses, with a manual override such as
	// a drain. ByHand lists the first of these overrides.
	Overrides int              `json:"overrides,omitempty"`
	ByHand    []OverrideTarget `json:"by_hand,omitempty"`
	// Pending lists the changes that revert unless they are confirmed.
	Pending []Pending `json:"pending,omitempty"`
	// Ownership describes the state of vipd owner on this host. It is "" if this host owns no VIPs.
	Ownership string `json:"ownership,omitempty"`
	// Confirmed maps each host that must confirm this host as an owner to the age of its
	// confirmation in seconds, or -1 if there is none.
	Confirmed map[string]float64 `json:"confirmed,omitempty"`
	// Addresses lists the VIPs and their holders.
	Addresses []Address          `json:"addresses"`
	Problems  []balancer.Problem `json:"problems"`
}

// HealthCount summarizes the health of all endpoints. An endpoint counts once for each of its
// ports.
type HealthCount struct {
	// Checked is the number of endpoints with a health check, Down the number of endpoints that
	// fail it, and Unknown the number of endpoints without a result.
	Checked int `json:"checked"`
	// Endpoints is the number of checked endpoints. An endpoint with several ports counts only
	// once.
	Endpoints int `json:"endpoints"`
	Down      int `json:"down"`
	Unknown   int `json:"unknown"`
	// Unable is the number of checks that this node can't run, so the affected endpoints' verdicts
	// may be outdated.
	Unable int `json:"unable,omitempty"`
	// Services lists the services with endpoints that are down, with the health of each port.
	Services []ServiceHealth `json:"services,omitempty"`
	// Panic lists the services with so few healthy endpoints that all endpoints are used.
	Panic []balancer.Name `json:"panic,omitempty"`
	// Out lists the services that have a port whose endpoints all fail. Clients of that port are
	// refused.
	Out []balancer.Name `json:"out,omitempty"`
}

// ServiceHealth is the health of one service, per port.
type ServiceHealth struct {
	Service balancer.Name `json:"service"`
	// Ports counts the checked endpoints of each port: the endpoints that are not down, and all
	// endpoints.
	Ports Use `json:"ports"`
}

// Mode is the dataplane in use, with the reason for the choice.
type Mode struct {
	InUse string `json:"in_use"`
	// Wanted is the configured mode.
	Wanted string `json:"wanted"`
	// Reason explains why this mode is in use, and why each rejected mode was rejected.
	Reason string `json:"reason"`
	// Fallback reports whether the mode in use differs from the wanted mode.
	Fallback bool `json:"fallback"`
	// Detail is text specific to the mode. In userspace mode, it describes how vipd intercepts
	// traffic, and why.
	Detail string `json:"detail,omitempty"`
}

// Store describes the source of services, and its state.
type Store struct {
	Kind string `json:"kind"`
	// Place is the file, the directory, or etcd's endpoints.
	Place     string `json:"place"`
	Connected bool   `json:"connected"`
	// EverRead reports whether the source has been read since the daemon started. If not, there is
	// no last valid state.
	EverRead bool   `json:"ever_read"`
	Error    string `json:"error,omitempty"`
	Revision int64  `json:"revision"`
}

// Sync describes the dataplane's progress.
type Sync struct {
	// Wanted and Applied are store revisions.
	Wanted  int64 `json:"wanted"`
	Applied int64 `json:"applied"`
	// Pending is the number of frontends that are not applied yet. Failing is the number of
	// frontends in backoff.
	Pending int `json:"pending"`
	Failing int `json:"failing"`
	// Last is the time of the last sync that had work to do.
	Last         time.Time     `json:"last,omitzero"`
	LastDuration time.Duration `json:"last_duration_ns"`
	LastChanges  int           `json:"last_changes"`
	LastError    string        `json:"last_error,omitempty"`
	// Repairs counts the objects that vipd repaired after other programs had changed them.
	Repairs int `json:"drift_repairs"`
}

// Address is a VIP on this node.
type Address struct {
	Address string `json:"address"`
	// Held is where the address is: the interface on which vipd holds it, "host" if it is one of
	// the host's own addresses, or "none".
	Held string `json:"held"`
	// Owned reports whether only one host at a time holds the VIP (hold = "one"). If Held is
	// "host", this host holds it.
	Owned bool `json:"owned,omitempty"`
	// Silent reports whether this host holds the address as a real server for direct routing. vipd
	// then serves nothing at this address.
	Silent bool `json:"silent,omitempty"`
	// Note describes a consequence of how the VIP is held, or a problem.
	Note string `json:"note,omitempty"`
}

// Reload is the result of a reload.
type Reload struct {
	Revision int64              `json:"revision"`
	Services int                `json:"services"`
	Problems []balancer.Problem `json:"problems"`
	// Unapplied reports whether Revision was not yet applied when vipd stopped waiting.
	Unapplied bool `json:"unapplied,omitempty"`
	// Pending lists the changes that revert unless they are confirmed.
	Pending []Pending `json:"pending,omitempty"`
	// Refused reports whether nothing was changed because of the problems.
	Refused bool `json:"refused,omitempty"`
	ReloadChanges
}

// ReloadChanges lists the changes to services in files since the last reload or, before the first
// reload, since vipd started.
type ReloadChanges struct {
	Added   []balancer.Name `json:"added,omitempty"`
	Changed []balancer.Name `json:"changed,omitempty"`
	Removed []balancer.Name `json:"removed,omitempty"`
	// Kept lists the services that keep their last valid definitions because of an error.
	Kept []balancer.Name `json:"kept,omitempty"`
	// Vanished lists the services in Kept that no file defines. A reload with ReloadPrune removes
	// them.
	Vanished []balancer.Name `json:"vanished,omitempty"`
}

// ReloadFlag modifies a reload.
type ReloadFlag string

// These are the flags for a reload.
const (
	// ReloadAllowEmpty accepts an empty main file.
	ReloadAllowEmpty ReloadFlag = "allow_empty"
	// ReloadPrune removes the services that no file defines, even if there are errors.
	ReloadPrune ReloadFlag = "prune"
	// ReloadConfirm makes the history record that the reload confirmed a pending change.
	ReloadConfirm ReloadFlag = "confirm"
)

// Difference is a frontend whose applied state differs from its desired state. Without a key, it is
// a kernel object that frontends share.
type Difference struct {
	Key     balancer.Key  `json:"key,omitzero"`
	Service balancer.Name `json:"service,omitempty"`
	// What is "missing", "extra" or "differs".
	What string `json:"what"`
	// Why says since when the frontend has differed, or contains the error.
	Why string `json:"why,omitempty"`
}

// OverrideRequest requests overrides for one endpoint, or for all endpoints on a node.
type OverrideRequest struct {
	// Service and Address select a service's endpoints by ADDRESS or ADDRESS:PORT. Node selects all
	// endpoints on a node.
	Service balancer.Name `json:"service,omitempty"`
	Address string        `json:"address,omitempty"`
	Node    string        `json:"node,omitempty"`
	// Weight sets the weight. The value [balancer.ResetWeight] removes an override. Draining starts
	// (true) or ends (false) a drain. A nil field changes nothing.
	Weight   *int  `json:"weight,omitempty"`
	Draining *bool `json:"draining,omitempty"`
	// Timeout limits how long the remaining connections may last during a drain. Zero means no
	// limit.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	// Expires is the lifetime of the override. Zero means that it does not expire.
	Expires time.Duration `json:"expires_ns,omitempty"`
	By      string        `json:"by,omitempty"`
	Reason  string        `json:"reason,omitempty"`
	// Force permits a change that leaves no usable endpoint.
	Force bool `json:"force,omitempty"`
}

// OverrideResult is the result of an OverrideRequest.
type OverrideResult struct {
	// Targets lists the affected endpoints, as SERVICE/ADDRESS.
	Targets []OverrideTarget `json:"targets"`
}

// OverrideTarget is an endpoint with a current or previous override.
type OverrideTarget struct {
	Service  balancer.Name      `json:"service"`
	Address  string             `json:"address"`
	Override *balancer.Override `json:"override,omitempty"`
}

// Event is an event on the node.
type Event = events.Event

// EventPage is a page of the event history.
type EventPage struct {
	// Missed is the number of earlier events that were dropped, whatever their kind and service. It
	// is 0 in the answer to a caller's first request.
	Missed uint64  `json:"missed,omitempty"`
	Events []Event `json:"events"`
	// Next is the number of the last event that was read. The next request passes it as since.
	Next uint64 `json:"next"`
}

// CheckRequest requests a single health check of one endpoint.
type CheckRequest struct {
	Service balancer.Name `json:"service"`
	// Address is ADDRESS, or ADDRESS:PORT if the endpoint is checked at several ports.
	Address string `json:"address"`
}

// CheckResult is the result of a single health check, which does not affect the endpoint's verdict.
type CheckResult struct {
	Service balancer.Name `json:"service"`
	// Address is the endpoint as ADDRESS:PORT, At is the probed address, and Type is the kind of
	// probe.
	Address string              `json:"address"`
	At      string              `json:"at"`
	Type    balancer.HealthType `json:"type"`
	// Outcome is passed, failed, or not run if this host could not run the check. Text describes
	// the result.
	Outcome string        `json:"outcome"`
	Text    string        `json:"text"`
	Took    time.Duration `json:"took_ns"`
	// Exchange holds the lines that were sent (>) and received (<), and events (*).
	Exchange string `json:"exchange"`
	// Health is the current verdict.
	Health balancer.Verdict `json:"health,omitempty"`
	// Checks holds the results of the checks if there are several. The fields above, except
	// Exchange, then describe the check that decides.
	Checks []CheckResult `json:"checks,omitempty"`
}

// DirectRequest requests a test of the paths used by direct routing.
type DirectRequest struct {
	// Service is the service to test. If empty, all services are tested.
	Service balancer.Name `json:"service,omitempty"`
}

// DirectPath is the result of testing one path, from a gateway through an endpoint to a VIP.
type DirectPath struct {
	Service  balancer.Name        `json:"service"`
	Frontend balancer.Key         `json:"frontend"`
	Endpoint netip.Addr           `json:"endpoint"`
	Findings []realserver.Finding `json:"findings"`
}

// Connection is one live connection.
type Connection = dataplane.Connection

// Explanation describes the path of a connection.
type Explanation struct {
	explain.Answer
	// Live is the result of the daemon's own connection, or nil if none was requested.
	Live *Live `json:"live,omitempty"`
}

// Live describes a connection that the daemon opened from its node.
type Live struct {
	Client netip.AddrPort `json:"client,omitzero"`
	// Endpoint is the connection's endpoint. State is the connection's state, as the mode reports
	// it.
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	State    string         `json:"state,omitempty"`
	// Connected is how long the connection to the VIP took to establish. Taken is how long the
	// daemon took to find the endpoint.
	Connected time.Duration `json:"connected_ns"`
	Taken     time.Duration `json:"taken_ns,omitzero"`
	// Error is the reason why the connection failed.
	Error string `json:"error,omitempty"`
}
