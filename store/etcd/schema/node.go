package schema

import (
	"fmt"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
)

// NodeConfig is a node's configuration in etcd (nodes/NODE/config). It overrides the node's own
// file.
type NodeConfig struct {
	// Mode is the node's mode: auto, ipvs, nftables, iptables or userspace. If empty, the mode in
	// the node's configuration file applies.
	Mode string `toml:"mode" json:"mode,omitempty"`
	// Zone is the node's zone. If empty, the zone in the node's configuration file applies.
	Zone string `toml:"zone" json:"zone,omitempty"`
	// Standby reports whether the node must hand over its VIPs to other nodes, and own no VIPs.
	Standby bool `toml:"standby" json:"standby,omitempty"`
	// By and Reason record who made the last change, and why.
	By     string `toml:"by" json:"by,omitempty"`
	Reason string `toml:"reason" json:"reason,omitempty"`
}

// HasSetting reports whether the configuration contains a setting. A note, which only names the
// user that removed the settings, contains none.
func (c NodeConfig) HasSetting() bool { return c.Mode != "" || c.Zone != "" || c.Standby }

// NodeLive describes the running daemon (nodes/NODE/live). It is written once, under the daemon's
// lease.
type NodeLive struct {
	// Version is the version of the daemon.
	Version string `json:"version"`
	// Started is when the daemon started.
	Started time.Time `json:"started"`
}

// NodeStatus is a node's status (nodes/NODE/status), with the same lease.
type NodeStatus struct {
	// At is when the status was written. An unchanged status is not written again.
	At time.Time `json:"at"`
	// Version is the version of the daemon.
	Version string `json:"version"`
	// Zone is the zone of the node.
	Zone string `json:"zone,omitempty"`
	// Mode is the mode in use, Wanted is the configured mode, and Why is the reason for the mode.
	// Fallback reports whether Mode differs from the wanted mode.
	Mode     string `json:"mode"`
	Wanted   string `json:"wanted"`
	Why      string `json:"why,omitempty"`
	Fallback bool   `json:"fallback,omitempty"`
	// Revision is the etcd revision up to which services, endpoints and overrides have been applied
	// in the kernel.
	Revision int64 `json:"revision"`
	// Ready reports whether the first complete state has been applied in the kernel.
	Ready bool `json:"ready"`
	// Services, Frontends and Endpoints are counts. Pending counts changes that have not been
	// applied yet. Failing counts changes that the kernel refused.
	Services  int `json:"services"`
	Frontends int `json:"frontends"`
	Endpoints int `json:"endpoints"`
	Pending   int `json:"pending"`
	Failing   int `json:"failing"`
	// ProblemCount is the number of problems. Problems lists the first MaxNodeProblems of them.
	ProblemCount int      `json:"problem_count"`
	Problems     []string `json:"problems,omitempty"`
	// Drains lists the draining endpoints with their connections on this node. If there are more
	// than MaxNodeDrains, it lists the endpoints with the most connections, and DrainsOmitted
	// counts the others.
	Drains        []NodeDrain `json:"drains,omitempty"`
	DrainsOmitted int         `json:"drains_omitted,omitempty"`
}

// NodeDrain is an endpoint that is draining on a node.
type NodeDrain struct {
	Service balancer.Name `json:"service"`
	// Address has the format of an override's key: ADDRESS or ADDRESS:PORT.
	Address string `json:"address"`
	// Active is the number of connections to the endpoint on the node.
	Active uint64 `json:"active"`
}

// MaxNodeProblems and MaxNodeDrains are the maximum numbers of problems and drains in a status.
// They are limited because etcd accepts 1.5 MiB in a request.
const MaxNodeProblems, MaxNodeDrains = 20, 4000

// Check returns the mistake in c, or nil.
func (c NodeConfig) Check() error {
	if modes := balancer.ModeNames(); c.Mode != "" && !slices.Contains(modes, c.Mode) {
		return fmt.Errorf("%q is not a mode: use one of %q%s", c.Mode, modes, decode.DidYouMean(c.Mode, modes))
	}
	return nil
}

// DecodeNodeConfig decodes a node's configuration. It returns nil if any part of it is an error,
// such as a newer version's mode.
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
