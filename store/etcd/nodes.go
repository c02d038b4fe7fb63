package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/balancer/snap"
)

// Node is what etcd has of a node.
type Node struct {
	Name string
	// Config is what the node is told; nil means nothing, or what can't be read.
	Config *NodeConfig
	// Live is there while the node's daemon is, in contact with etcd; Status is how that was last.
	Live   *NodeLive
	Status *NodeStatus
	// Problems are what can't be read of the node's keys.
	Problems []balancer.Problem
}

// The words that Ready returns.
const (
	NodeReady    = "yes"
	NodeNotReady = "no"
	NodeStarting = "starting"
	NodeGone     = "gone"
)

// Ready says whether the node serves its first complete state; it is gone where only its config is left.
func (n *Node) Ready() string {
	switch {
	case n.Live == nil:
		return NodeGone
	case n.Status == nil:
		return NodeStarting
	case !n.Status.Ready:
		return NodeNotReady
	}
	return NodeReady
}

// Nodes returns all nodes that exist or are configured, by name. Revision is the newest change of what all nodes follow. Removals of
// endpoints and overrides leave nothing behind, so they count with the next change. It is 0 if the user may not read all that.
func (w *Writer) Nodes(ctx context.Context) (nodes []Node, revision int64, err error) {
	if nodes, err = w.Statuses(ctx); err != nil {
		return nil, 0, err
	}
	if revision, err = w.newest(ctx); Forbidden(err) {
		return nodes, 0, nil
	}
	return nodes, revision, err
}

// newest returns the revision of the last change of what all nodes follow. The history is read because it knows of removed services.
func (w *Writer) newest(ctx context.Context) (revision int64, err error) {
	for _, s := range append(w.keys.scopes(""), folder(w.keys.prefix+historyFolder)) {
		answer, err := w.get(ctx, &etcdserverpb.RangeRequest{
			Key: []byte(s.key), RangeEnd: []byte(s.end), Limit: 1, KeysOnly: true,
			SortOrder: etcdserverpb.RangeRequest_DESCEND, SortTarget: etcdserverpb.RangeRequest_MOD,
		})
		if err != nil {
			return 0, err
		}
		if len(answer.Kvs) > 0 {
			revision = max(revision, answer.Kvs[0].ModRevision)
		}
	}
	return revision, nil
}

// Statuses returns the nodes as Nodes does, and looks at no other keys.
func (w *Writer) Statuses(ctx context.Context) (nodes []Node, err error) {
	byName := map[string]*Node{}
	err = w.readFolder(ctx, nodeFolder, new(int64), func(rest string, kv *mvccpb.KeyValue) {
		name, key, _ := strings.Cut(rest, "/")
		if CheckNode(name) != nil || key == nodeConfig && isNote(kv.Value) {
			return
		}
		if byName[name] == nil {
			byName[name] = &Node{Name: name}
		}
		byName[name].take(key, kv)
	})
	if err != nil {
		return nil, err
	}
	for _, n := range byName {
		nodes = append(nodes, *n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

// Published returns what the live nodes publish of themselves, without what can't be read.
func (w *Writer) Published(ctx context.Context) (nodes snap.Map[balancer.NodeName, *balancer.Node], err error) {
	err = w.readFolder(ctx, hostFolder, new(int64), func(name string, kv *mvccpb.KeyValue) {
		if n, _ := decodeHost(kv.Value, balancer.Origin{}); CheckNode(name) == nil && n != nil {
			nodes = nodes.Set(balancer.NodeName(name), n.(*balancer.Node))
		}
	})
	return nodes, err
}

// isNote reports whether a node's configuration says only who took back what was set.
func isNote(text []byte) bool {
	says, problems := decodeValue(subject{kind: nodeConfigKind}, text, balancer.Origin{}, nil)
	config, _ := says.(*NodeConfig)
	return config != nil && !config.Says() && len(problems) == 0
}

// take takes in one key of a node.
func (n *Node) take(key string, kv *mvccpb.KeyValue) {
	origin := balancer.Origin{Key: string(kv.Key), Revision: kv.ModRevision, Created: kv.CreateRevision}
	read := func(into any) bool {
		err := json.Unmarshal(kv.Value, into)
		if err != nil {
			n.Problems = append(n.Problems, problem("", origin, "the value can't be read: "+err.Error())...)
		}
		return err == nil
	}
	switch key {
	case nodeConfig:
		says, problems := decodeValue(subject{kind: nodeConfigKind, node: n.Name}, kv.Value, origin, nil)
		n.Config, _ = says.(*NodeConfig)
		n.Problems = append(n.Problems, problems...)
	case nodeLive:
		n.Live = &NodeLive{} // the node is there, whatever is said
		read(n.Live)
	case nodeStatus:
		var s NodeStatus
		if read(&s) {
			n.Status = &s
		}
	}
}

// SetNode changes what a node is told: edit gets what it is told now (the zero value: nothing), and returns what it is to
// be told. Fields that a newer version has written stay. It may be called again if another client writes at the same time.
func (w *Writer) SetNode(ctx context.Context, name string, edit func(NodeConfig) NodeConfig) (Result, error) {
	if err := CheckNode(name); err != nil {
		return Result{}, err
	}
	key := w.keys.NodeConfig(name)
	return w.edit(ctx, key, func(old []byte) (edited, error) {
		fields, _ := ParseObject(old)
		d, _ := decodeNodeConfig(fields, balancer.Origin{})
		if d == nil {
			d, fields = &NodeConfig{}, nil // what can't be read says nothing, and is overwritten
		}
		next := edit(*d)
		if err := next.Check(); err != nil {
			return edited{}, fmt.Errorf("configuring node %s: %w", name, err)
		}
		if next.Mode == d.Mode && next.Zone == d.Zone && next.Standby == d.Standby && fields != nil {
			return edited{text: old}, nil
		}
		return next.text(fields, len(old) > 0)
	})
}

// text writes c over the fields that are there. Where c takes back all that was set, only a note is left, if something was.
func (c NodeConfig) text(fields map[string]any, was bool) (edited, error) {
	if fields == nil {
		fields = map[string]any{}
	}
	signs := 0
	for field, value := range map[string]string{"mode": c.Mode, "zone": c.Zone, "by": c.By, "reason": c.Reason} {
		if fields[field] = value; value == "" {
			delete(fields, field)
		} else if field == "by" || field == "reason" {
			signs++
		}
	}
	if fields["standby"] = c.Standby; !c.Standby {
		delete(fields, "standby")
	}
	note := len(fields) == signs
	if note && (!was || signs == 0) {
		return edited{}, nil
	}
	text, err := encode(fields)
	return edited{text, note}, err
}

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

// decodeNodeConfig reads the table of a node's configuration. It is nil if anything in it is an error, such as the mode of a
// newer version.
func decodeNodeConfig(fields map[string]any, origin balancer.Origin) (*NodeConfig, []balancer.Problem) {
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
