package schema

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
	Mode string `toml:"mode" json:"mode,omitempty"`
	// Zone is where the node is; "" means its file says it.
	Zone string `toml:"zone" json:"zone,omitempty"`
	// Standby: the node gives its VIPs with one owner away, and takes none.
	Standby bool `toml:"standby" json:"standby,omitempty"`
	// By and Reason say who set it last, and why.
	By     string `toml:"by" json:"by,omitempty"`
	Reason string `toml:"reason" json:"reason,omitempty"`
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
	// Drains are the endpoints that drain, with the connections that they have left on this node; of more than MaxNodeDrains those with
	// the most. DrainsOmitted is how many are not among them.
	Drains        []NodeDrain `json:"drains,omitempty"`
	DrainsOmitted int         `json:"drains_omitted,omitempty"`
}

// NodeDrain is an endpoint that drains on a node.
type NodeDrain struct {
	Service balancer.Name `json:"service"`
	// Address is written as in the key of an override: ADDRESS or ADDRESS:PORT.
	Address string `json:"address"`
	// Active is the number of connections that it has there.
	Active uint64 `json:"active"`
}

// MaxNodeProblems is how many problems a status names, and MaxNodeDrains how many endpoints that drain: etcd takes 1.5 MiB at once.
const MaxNodeProblems, MaxNodeDrains = 20, 4000

// Check says what is wrong with c; nil means nothing.
func (c NodeConfig) Check() error {
	if modes := balancer.ModeNames(); c.Mode != "" && !slices.Contains(modes, c.Mode) {
		return fmt.Errorf("%q is not a mode: %q are possible%s", c.Mode, modes, decode.DidYouMean(c.Mode, modes))
	}
	return nil
}

// DecodeNodeConfig reads the table of a node's configuration. It is nil if anything in it is an error, such as the mode of a
// newer version.
func DecodeNodeConfig(fields map[string]any, origin balancer.Origin) (*NodeConfig, []balancer.Problem) {
	var c NodeConfig
	problems := readTable(&c, fields, "", origin)
	if err := c.Check(); err != nil {
		problems = append(problems, balancer.Problem{Severity: balancer.SeverityError, Origin: origin, Field: "mode", Text: err.Error()})
	}
	if faulty(problems) {
		return nil, problems
	}
	return &c, problems
}
