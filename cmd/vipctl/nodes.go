package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
	"vipd/store/etcd"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
)

// nodeView is a node as get and describe show it.
type nodeView struct {
	Node string `json:"node"`
	// Here reports whether the node's vipd is running and can reach etcd.
	Here bool `json:"here"`
	// Behind is the number of revisions by which the node lags behind etcd, or nil if it is
	// unknown.
	Behind *int64             `json:"behind"`
	Live   *schema.NodeLive   `json:"live,omitempty"`
	Config *schema.NodeConfig `json:"config,omitempty"`
	Status *schema.NodeStatus `json:"status,omitempty"`
	// Problems lists the node's keys that can't be read.
	Problems []balancer.Problem `json:"problems,omitempty"`
}

// nodes returns the kind of object that "get nodes" lists.
func nodes() *kind[nodeView] {
	return &kind[nodeView]{
		name: "node", read: readNodes, id: func(n *nodeView) string { return n.Node }, table: nodesTable,
		none: "there are no nodes: no vipd has used this etcd under this prefix",
	}
}

// nodeViews returns all nodes, and the number of revisions by which each lags behind.
func nodeViews(w *etcd.Store, ctx context.Context) ([]nodeView, error) {
	nodes, newest, err := w.Nodes(ctx)
	return lists.Mapped(nodes, func(n fleet.Node) nodeView {
		v := nodeView{Node: n.Name, Here: n.Live != nil, Live: n.Live, Config: n.Config, Status: n.Status, Problems: n.Problems}
		if v.Here && v.Status != nil && newest > 0 {
			behind := max(0, newest-v.Status.Revision)
			v.Behind = &behind
		}
		return v
	}), err
}

// readNodes shows the nodes. With -w, it shows them again after each change until ctx is done. It
// polls once a second, because nodes write at most once a second.
func readNodes(c *cli.Call, show func([]nodeView) error) error {
	if _, err := c.Etcd(); err != nil { // an invalid etcd configuration is not retried
		return err
	}
	return showPolled(c, func() ([]nodeView, error) { return cli.AskEtcd(c, nodeViews) }, changing, show)
}

// changing returns the nodes' data without the times of their statuses. A watch shows the nodes
// again when these data change.
func changing(nodes []nodeView) any {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		if nodes[i].Status != nil {
			s := *nodes[i].Status
			s.At = time.Time{}
			nodes[i].Status = &s
		}
	}
	return nodes
}

func nodesTable(p *cli.Printer, nodes []nodeView) *table.Table {
	t := table.New(
		table.Column{Title: "NODE"}, table.Column{Title: "ZONE", Wide: true}, table.Column{Title: "MODE", Style: nodeModeStyle},
		table.Column{Title: "READY", Style: readyStyle}, table.Column{Title: "REVISION", Right: true},
		table.Column{Title: "BEHIND", Right: true, Style: behindStyle}, table.Column{Title: "PROBLEMS", Right: true, Style: problemStyle},
		table.Column{Title: "AGE", Right: true},
		table.Column{Title: "CONFIG", Wide: true}, table.Column{Title: "VERSION", Wide: true}, table.Column{Title: "FRONTENDS", Wide: true, Right: true},
		table.Column{Title: "DRAINS", Wide: true, Right: true}, table.Column{Title: "SEEN", Wide: true, Right: true}, table.Column{Title: "WHY", Wide: true},
	)
	for i := range nodes {
		n := &nodes[i]
		s, live := cmp.Or(n.Status, &schema.NodeStatus{}), cmp.Or(n.Live, &schema.NodeLive{})
		mode := s.Mode
		seen := ""
		behind := ""
		drains := uint64(0)
		if s.Fallback {
			mode += "!"
		}
		if !s.At.IsZero() { // the time of the last change, because a node writes its status only when it changes
			seen = ago(p, s.At)
		}
		if n.Behind != nil {
			behind = strconv.FormatInt(*n.Behind, 10)
		}
		for _, d := range s.Drains {
			drains += d.Active
		}
		frontends := number(s.Frontends)
		if s.Pending > 0 || s.Failing > 0 {
			frontends = fmt.Sprintf("%d (%d pending, %d failing)", s.Frontends, s.Pending, s.Failing)
		}
		t.Row(n.Node, s.Zone, mode, (&fleet.Node{Live: n.Live, Status: n.Status}).Ready(), number(s.Revision), behind, number(s.ProblemCount),
			elapsed(p, live.Started), configText(n.Config), s.Version, frontends, number(drains), seen, s.Why)
	}
	return t
}

func nodeModeStyle(text string) table.Style {
	if strings.HasSuffix(text, "!") {
		return table.Bad
	}
	return table.Plain
}

func readyStyle(text string) table.Style {
	switch text {
	case fleet.NodeReady:
		return table.Good
	case fleet.NodeStarting:
		return table.Notice
	}
	return table.Bad
}

func behindStyle(text string) table.Style {
	if text == "0" || text == "-" {
		return table.Plain
	}
	return table.Notice
}

func configText(conf *schema.NodeConfig) string {
	if conf == nil {
		return ""
	}
	var words []string
	if conf.Mode != "" {
		words = append(words, "mode="+conf.Mode)
	}
	if conf.Zone != "" {
		words = append(words, "zone="+conf.Zone)
	}
	if conf.Standby {
		words = append(words, "standby")
	}
	return strings.Join(words, ",")
}

func nodeNames(c *cli.Call, _ []string) []string {
	all, _ := cli.AskEtcd(c, (*etcd.Store).Statuses) // no completion without an answer
	return lists.Mapped(all, func(n fleet.Node) string { return n.Name })
}
