package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/store/etcd"
)

// vigil keeps an eye on the nodes of the fleet until each has come to a revision, and has no connection left that is
// waited for. Nodes may come and go meanwhile.
type vigil struct {
	revision int64
	// named are the only nodes that count, whether they are there or not. Empty: all that are there count.
	named []string
	// drains picks the connections that are waited for; nil means none are.
	drains func(etcd.NodeDrain) bool

	seen map[string]sight
	// done and gone are the nodes that have come to the end, and those that went before and are given up.
	done, gone []string
	// problems are those that nodes among done have told, a sentence each.
	problems map[string][]string
}

// sight is how a node was when it was last there.
type sight struct {
	at   time.Time
	done bool
}

// absence is how long a node that has vanished is waited for: one that is restarted is back by then, and so is one whose
// lease has ended because it did not reach etcd.
const absence = 15 * time.Second

// laggard is a node that is waited for, and why.
type laggard struct {
	Node string `json:"node"`
	// Revision is what it has applied; 0 means nothing is known of it.
	Revision int64 `json:"revision"`
	// Connections are those that are left there.
	Connections uint64 `json:"connections"`
	Why         string `json:"why"`
}

// look takes in the nodes as they are now, and returns those that are waited for, by name.
func (v *vigil) look(nodes []etcd.Node, now time.Time) []laggard {
	if v.seen == nil {
		v.seen = map[string]sight{}
	}
	var lag []laggard
	there := map[string]bool{}
	v.done, v.gone, v.problems = nil, nil, map[string][]string{}
	for i := range nodes {
		n := &nodes[i]
		if n.Live == nil || len(v.named) > 0 && !slices.Contains(v.named, n.Name) {
			continue
		}
		l := v.judge(n)
		there[n.Name], v.seen[n.Name] = true, sight{now, l.Why == ""}
		if l.Why == "" {
			v.done = append(v.done, n.Name)
			if len(n.Status.Problems) > 0 {
				v.problems[n.Name] = n.Status.Problems
			}
		} else {
			lag = append(lag, l)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.seen)) {
		if there[name] {
			continue
		}
		switch s := v.seen[name]; {
		case s.done:
			v.done = append(v.done, name) // what it had applied it has again when it comes back
		case len(v.named) > 0 || now.Sub(s.at) < absence:
			lag = append(lag, laggard{Node: name, Why: "has gone away"})
		default:
			v.gone = append(v.gone, name)
		}
		there[name] = true
	}
	for _, name := range v.named {
		if !there[name] {
			lag = append(lag, laggard{Node: name, Why: "is not there"})
		}
	}
	slices.Sort(v.done)
	slices.SortFunc(lag, func(a, b laggard) int { return strings.Compare(a.Node, b.Node) })
	return lag
}

// judge says why a node that is there is waited for; Why is "" where it is not.
func (v *vigil) judge(n *etcd.Node) laggard {
	l := laggard{Node: n.Name}
	if n.Status == nil {
		l.Why = "has no status yet"
		return l
	}
	if l.Revision = n.Status.Revision; v.drains != nil {
		for _, d := range n.Status.Drains {
			if v.drains(d) {
				l.Connections += d.Active
			}
		}
	}
	switch {
	case l.Revision < v.revision:
		l.Why = fmt.Sprintf("is at revision %d", l.Revision)
	case l.Connections > 0:
		l.Why = "has " + count(l.Connections, "connection")
	case v.drains != nil && mayOmitConnections(n.Status):
		l.Why = fmt.Sprintf("has %d more endpoints that drain than it tells of", n.Status.DrainsOmitted)
	}
	return l
}

// mayOmitConnections reports whether drains that a status omits may have connections: at most as many as the last one that it
// has, and any number where it has none.
func mayOmitConnections(s *etcd.NodeStatus) bool {
	n := len(s.Drains)
	return s.DrainsOmitted > 0 && (n == 0 || s.Drains[n-1].Active > 0)
}

func left(lag []laggard) (n uint64) {
	for _, l := range lag {
		n += l.Connections
	}
	return n
}

// names lists nodes for a sentence; of many, the first.
func names(lag []laggard) string {
	const most = 5
	text := strings.Join(mapped(lag[:min(len(lag), most)], func(l laggard) string { return l.Node + " " + l.Why }), ", ")
	if more := len(lag) - most; more > 0 {
		text += fmt.Sprintf(" and %s more", count(more, "node"))
	}
	return text
}

// The pace of looking at the nodes, which tell once a second how far they are, and how long etcd may be away: at the start,
// and later.
const (
	fleetInterval = time.Second
	fleetPatience = 5 * time.Minute
)

// errNoNode ends a vigil over no node.
var errNoNode = errors.New("no vipd runs here: none has a status in this etcd under this prefix")

// keep looks at the nodes again and again until it waits for none, and hands those that it waits for to show. It returns
// which those are when it ends for another reason: ctx, or etcd, which may be away for a while.
func (v *vigil) keep(c *call, show func([]laggard)) (lag []laggard, err error) {
	err = c.poll(pace{fleetInterval, fleetPatience}, func() (bool, error) {
		nodes, err := c.writer.Statuses(c)
		if err != nil {
			return false, err
		}
		if lag = v.look(nodes, c.now()); len(lag) > 0 {
			show(lag)
			return false, nil
		}
		if len(v.done) == 0 {
			return true, errNoNode
		}
		return true, nil
	})
	return lag, err
}
