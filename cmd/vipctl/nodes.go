package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/find"
	"vipd/cmd/internal/table"
	"vipd/store/etcd"
)

// nodeView is a node as get and describe show it.
type nodeView struct {
	Node string `json:"node"`
	// Here: its vipd runs, and reaches etcd.
	Here bool `json:"here"`
	// Behind is how far it is behind what is in etcd, in revisions; nil: that is not known.
	Behind *int64           `json:"behind"`
	Live   *etcd.NodeLive   `json:"live,omitempty"`
	Config *etcd.NodeConfig `json:"config,omitempty"`
	Status *etcd.NodeStatus `json:"status,omitempty"`
	// Problems are what can't be read of the node's keys.
	Problems []balancer.Problem `json:"problems,omitempty"`
}

// readNodes returns all nodes, and how far each is behind.
func (c *call) readNodes(w *etcd.Writer) ([]nodeView, error) {
	nodes, newest, err := w.Nodes(c)
	if err != nil {
		return nil, err
	}
	views := []nodeView{}
	for _, n := range nodes {
		v := nodeView{Node: n.Name, Here: n.Live != nil, Live: n.Live, Config: n.Config, Status: n.Status, Problems: n.Problems}
		if v.Here && v.Status != nil && newest > 0 {
			behind := max(0, newest-v.Status.Revision)
			v.Behind = &behind
		}
		views = append(views, v)
	}
	return views, nil
}

// getNodes is "get nodes".
func (c *call) getNodes(name string) error {
	w, err := c.fleet()
	if err != nil {
		return err
	}
	if c.flags.Bool("watch") {
		return c.followNodes(w, name)
	}
	all, err := c.readNodes(w)
	if err != nil {
		return err
	}
	some := ofNode(all, name)
	if name != "" && len(some) == 0 {
		return noNode(all, name)
	}
	return c.showNodes(some, name)
}

func ofNode(all []nodeView, name string) []nodeView {
	return slices.DeleteFunc(slices.Clone(all), func(n nodeView) bool { return name != "" && n.Node != name })
}

// noNode says that there is no such node, and which is near.
func noNode(all []nodeView, name string) error {
	var known []string
	for _, n := range all {
		known = append(known, n.Node)
	}
	return fmt.Errorf("there is no node %q%s", name, find.Meant(name, known))
}

func (c *call) showNodes(nodes []nodeView, name string) error {
	switch c.format {
	case formJSON:
		return c.printJSON(nodes)
	case formName:
		var b strings.Builder
		for _, n := range nodes {
			fmt.Fprintln(&b, n.Node)
		}
		return c.print(b.String())
	}
	empty := "there are no nodes: no vipd has been at this etcd under this prefix"
	if name != "" {
		empty = fmt.Sprintf("there is no node %q", name)
	}
	return c.printTable(c.nodesTable(nodes), empty)
}

// followNodes shows the nodes again with each change, until ctx ends. It asks once a second: that is how often nodes tell
// anything.
func (c *call) followNodes(w *etcd.Writer, name string) error {
	tick := time.NewTicker(fleetInterval)
	defer tick.Stop()
	answered, patience, trouble, last := c.now(), fleetFirstPatience, "", ""
	for {
		all, err := c.readNodes(w)
		switch {
		case c.Err() != nil:
			return nil
		case err == nil:
			answered, patience, trouble = c.now(), fleetPatience, ""
			some := ofNode(all, name)
			if text := changing(some); text != last {
				if err := c.newFrame(last == ""); err != nil {
					return err
				}
				if err := c.showNodes(some, name); err != nil {
					return err
				}
				last = text
			}
		case c.now().Sub(answered) > patience:
			return err
		case trouble != err.Error():
			trouble = err.Error()
			c.note("%v; trying again", err)
		}
		select {
		case <-c.Done():
			return nil
		case <-tick.C:
		}
	}
}

// changing is what is compared to find a change: all but when a status was written.
func changing(nodes []nodeView) string {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		if nodes[i].Status != nil {
			s := *nodes[i].Status
			s.At = time.Time{}
			nodes[i].Status = &s
		}
	}
	text, _ := json.Marshal(nodes) // they came from JSON
	return string(text)
}

func (c *call) nodesTable(nodes []nodeView) *table.Table {
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
		var s etcd.NodeStatus
		if n.Status != nil {
			s = *n.Status
		}
		t.Row(n.Node, s.Zone, nodeMode(&s), ready(n), number(s.Revision), behind(n), number(s.ProblemCount), c.age(n),
			configText(n.Config), s.Version, frontendText(&s), number(drainCount(&s)), c.seenText(&s), s.Why)
	}
	return t
}

// number writes n, or nothing for 0.
func number[N int | int64 | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}

// nodeMode is the mode in use, with a mark where it is a fallback.
func nodeMode(s *etcd.NodeStatus) string {
	if s.Fallback {
		return s.Mode + "!"
	}
	return s.Mode
}

func nodeModeStyle(text string) table.Style {
	if strings.HasSuffix(text, "!") {
		return table.Bad
	}
	return table.Plain
}

// The words of the column READY.
const (
	nodeReady    = "yes"
	nodeNotReady = "no"
	nodeStarting = "starting"
	nodeGone     = "gone"
)

// ready says whether the node serves its first complete state; it is gone where only its config is left.
func ready(n *nodeView) string {
	switch {
	case !n.Here:
		return nodeGone
	case n.Status == nil:
		return nodeStarting
	case !n.Status.Ready:
		return nodeNotReady
	}
	return nodeReady
}

func readyStyle(text string) table.Style {
	switch text {
	case nodeReady:
		return table.Good
	case nodeStarting:
		return table.Notice
	}
	return table.Bad
}

func behind(n *nodeView) string {
	if n.Behind == nil {
		return ""
	}
	return strconv.FormatInt(*n.Behind, 10)
}

func behindStyle(text string) table.Style {
	if text == "0" || text == "-" {
		return table.Plain
	}
	return table.Notice
}

// age is how long the node's vipd has been running.
func (c *call) age(n *nodeView) string {
	if n.Live == nil || n.Live.Started.IsZero() {
		return ""
	}
	return roughly(c.now().Sub(n.Live.Started))
}

// seenText is how long ago the status was written: one that has nothing new to tell is not written again.
func (c *call) seenText(s *etcd.NodeStatus) string {
	if s.At.IsZero() {
		return ""
	}
	return c.ago(s.At)
}

func configText(conf *etcd.NodeConfig) string {
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
	return strings.Join(words, ",")
}

// frontendText is how many frontends there are, and how many of them are not as they should be.
func frontendText(s *etcd.NodeStatus) string {
	text := number(s.Frontends)
	if s.Pending > 0 || s.Failing > 0 {
		text = fmt.Sprintf("%d (%d pending, %d failing)", s.Frontends, s.Pending, s.Failing)
	}
	return text
}

func drainCount(s *etcd.NodeStatus) uint64 {
	var n uint64
	for _, d := range s.Drains {
		n += d.Active
	}
	return n
}

// nodeNames lists the nodes' names; none where etcd does not answer.
func (c *call) nodeNames() []string {
	w, err := c.fleet()
	if err != nil {
		return nil
	}
	nodes, err := w.Statuses(c)
	if err != nil {
		return nil
	}
	var all []string
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return all
}
