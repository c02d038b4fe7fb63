package etcd

import (
	"fmt"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
)

// NodeConfig is what a node is told in etcd (nodes/NODE/config). It wins over the node's own file.
type NodeConfig struct {
	// Mode is the mode that the node is to use: auto, ipvs, iptables or userspace; "" means its file says it.
	Mode string `json:"mode,omitempty"`
	// Zone is where the node is; "" means its file says it.
	Zone string `json:"zone,omitempty"`
	// Standby: the node gives its VIPs with one owner away, and takes none.
	Standby bool `json:"standby,omitempty"`
	// By and Reason say who set it last, and why.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Says reports whether the node is told anything. It is false for a note, which says who took its settings back.
func (c NodeConfig) Says() bool { return c.Mode != "" || c.Zone != "" || c.Standby }

// NodeLive says which daemon is there (nodes/NODE/live). It is written once, under the daemon's lease.
type NodeLive struct {
	// Version is that of the daemon.
	Version string `json:"version"`
	// Started is when it started.
	Started time.Time `json:"started"`
}

// NodeStatus is how a node is (nodes/NODE/status), under the same lease.
type NodeStatus struct {
	// At is when the daemon wrote it. A status that says the same is not written again.
	At time.Time `json:"at"`
	// Version is that of the daemon.
	Version string `json:"version"`
	// Zone is where the node is.
	Zone string `json:"zone,omitempty"`
	// Mode is the mode in use, Wanted the configured one, Why the reason for what is in use. Fallback: it is not the one
	// that should be.
	Mode     string `json:"mode"`
	Wanted   string `json:"wanted"`
	Why      string `json:"why,omitempty"`
	Fallback bool   `json:"fallback,omitempty"`
	// Revision is etcd's, up to which services, endpoints and overrides are in the kernel.
	Revision int64 `json:"revision"`
	// Ready: the first complete state is in the kernel.
	Ready bool `json:"ready"`
	// Services, Frontends and Endpoints are how many there are; Pending are changes that are still to be made, Failing
	// those that were refused.
	Services  int `json:"services"`
	Frontends int `json:"frontends"`
	Endpoints int `json:"endpoints"`
	Pending   int `json:"pending"`
	Failing   int `json:"failing"`
	// ProblemCount is the number of problems, Problems the first MaxNodeProblems of them, a sentence each.
	ProblemCount int      `json:"problem_count"`
	Problems     []string `json:"problems,omitempty"`
	// Drains are the endpoints that drain, with the connections that they have left on this node.
	Drains []NodeDrain `json:"drains,omitempty"`
}

// NodeDrain is an endpoint that drains on a node.
type NodeDrain struct {
	Service balancer.Name `json:"service"`
	// Address is written as in the key of an override: ADDRESS or ADDRESS:PORT.
	Address string `json:"address"`
	// Active is the number of connections that it has there.
	Active uint64 `json:"active"`
}

// MaxNodeProblems is how many problems a status names.
const MaxNodeProblems = 20

// nodeConfigFields are those of a NodeConfig as etcd holds it.
type nodeConfigFields struct {
	Mode    nodeMode `toml:"mode"`
	Zone    string   `toml:"zone"`
	Standby bool     `toml:"standby"`
	By      string   `toml:"by"`
	Reason  string   `toml:"reason"`
}

// nodeMode is a mode that a node may be told; a newer version's is an error here, and the last good one stays.
type nodeMode string

// Values lists what may be written.
func (nodeMode) Values() []string { return balancer.ModeNames() }

// Check says what is wrong with c; nil means nothing.
func (c NodeConfig) Check() error {
	if modes := nodeMode("").Values(); c.Mode != "" && !slices.Contains(modes, c.Mode) {
		return fmt.Errorf("%q is not a mode: %q are possible", c.Mode, modes)
	}
	return nil
}

// decodeNodeConfig reads the table of a node's configuration. It is nil if anything in it is an error.
func decodeNodeConfig(fields map[string]any, origin balancer.Origin) (*NodeConfig, []balancer.Problem) {
	var f nodeConfigFields
	var problems []balancer.Problem
	good := true
	for _, p := range decode.Into(&f, fields) {
		severity := balancer.SeverityError
		if p.Unknown {
			severity = balancer.SeverityWarning
		}
		good = good && p.Unknown
		problems = append(problems, balancer.Problem{Severity: severity, Origin: origin, Field: p.Path, Text: p.Text})
	}
	if !good {
		return nil, problems
	}
	return &NodeConfig{Mode: string(f.Mode), Zone: f.Zone, Standby: f.Standby, By: f.By, Reason: f.Reason}, problems
}
