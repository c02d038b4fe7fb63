package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/wording"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
)

func waitVerb() *cli.Verb {
	return &cli.Verb{
		Name: "wait", Args: "--revision R", Brief: "wait until all nodes have applied a revision of etcd",
		About: `Returns when every running vipd has revision R of etcd in its kernel. apply,
delete and drain print this revision. Nodes that join during the wait also
count. A node that leaves may be restarting: the command waits a little
longer, and then omits the node with a message.

With --nodes, only these nodes count, even if they do not exist yet. After
--timeout, the command names the nodes that lag, and the exit code is 1. A
node that refuses a service has still applied the revision; its problems are
printed. While etcd is unreachable, the command continues to wait.`,
		Example: "vipctl wait --revision 1042 --timeout 30s",
		Values:  map[string]cli.Completer{"nodes": nodeNames},
		Flags: []cli.Flag{
			&cli.Int64Flag{Name: "revision", Usage: "wait for revision `NUMBER`"},
			&cli.DurationFlag{Name: "timeout", Usage: "give up after `TIME`; 0 means never"},
			&cli.StringFlag{Name: "nodes", Usage: "wait only for these nodes: `NODE,...`"},
		},
		Formats: []string{cli.FormTable, cli.FormJSON},
		Fleet:   true, Run: runWait,
	}
}

// waited is the result of a wait for a revision.
type waited struct {
	Revision int64 `json:"revision"`
	// Applied lists the nodes that have applied the revision, Behind lists the nodes that have not,
	// and Gone lists the nodes that left before they applied it.
	Applied []string  `json:"applied"`
	Behind  []laggard `json:"behind"`
	Gone    []string  `json:"gone"`
	// Problems maps the nodes in Applied to their problems. A node that rejects services applies
	// the revision without them.
	Problems map[string][]string `json:"problems,omitempty"`
}

func runWait(c *cli.Call) error {
	v, timeout, err := waitedFor(c)
	if err != nil {
		return err
	}
	if _, err := c.Etcd(); err != nil {
		return err
	}
	bounded := *c
	if timeout > 0 {
		ctx, cancel := context.WithTimeout(c.Context, timeout)
		defer cancel()
		bounded.Context = ctx
	}
	watcher := &watcher{progress: progress{Printer: c.Printer}}
	lag, err := v.poll(&bounded, watcher.show)
	watcher.end()
	if c.Format == cli.FormJSON && (err == nil || len(lag) > 0) {
		if err := c.PrintJSON(waited{v.revision, lists.NonNil(v.done), lists.NonNil(lag), lists.NonNil(v.left), v.problems}); err != nil {
			return err
		}
	}
	late := errors.Is(err, context.DeadlineExceeded) && c.Err() == nil
	switch {
	case err == nil:
		return applied(c, v)
	case late && len(lag) > 0:
		return fmt.Errorf("revision %d is not applied on all nodes after %s: %s", v.revision, timeout, names(lag))
	case late:
		return fmt.Errorf("etcd did not answer within %s", timeout)
	case len(lag) > 0 && c.Err() != nil:
		return cli.Interrupted("; revision %d is not applied on all nodes: %s", v.revision, names(lag))
	}
	return err
}

func waitedFor(c *cli.Call) (*revisionWait, time.Duration, error) {
	v := &revisionWait{revision: c.Flags.Int64("revision")}
	timeout := c.Flags.Duration("timeout")
	switch {
	case v.revision <= 0:
		return nil, 0, cli.WrongUse("\"vipctl wait\" needs --revision R, a number above 0; for example: %s", c.Verb.Example)
	case timeout < 0:
		return nil, 0, cli.WrongUse("--timeout %s is below zero", timeout)
	}
	for name := range strings.SplitSeq(c.Flags.String("nodes"), ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(v.named, name) {
			v.named = append(v.named, name)
		}
	}
	return v, timeout, nil
}

// applied prints that the revision is applied. It also prints which nodes left, and the other
// nodes' problems.
func applied(c *cli.Call, v *revisionWait) error {
	if len(v.left) > 0 {
		c.Note("no longer waiting for removed nodes: %s", strings.Join(v.left, ", "))
	}
	const maxNodes = 5
	for i, name := range slices.Sorted(maps.Keys(v.problems)) {
		if i == maxNodes {
			c.Note("and %s more; \"vipctl get nodes\" lists all nodes", wording.Count(len(v.problems)-maxNodes, "node"))
			break
		}
		c.Note("%s has %s: %s", name, wording.Count(len(v.problems[name]), "problem"), v.problems[name][0])
	}
	if c.Format == cli.FormJSON {
		return nil
	}
	how := ""
	if n := len(v.problems); n > 0 {
		how = fmt.Sprintf(", but %s might not serve all of it", wording.Count(n, "node"))
	}
	return c.Print(fmt.Sprintf("revision %d is applied on %s%s\n", v.revision, wording.Count(len(v.done), "node"), how))
}

// watcher shows the awaited nodes. On a terminal it overwrites a line; otherwise it prints a new
// line at intervals.
type watcher struct {
	progress
	polls   int
	last    string
	shownAt time.Time
}

// repeatInterval is the minimum time between two lines. silentPolls is the number of initial polls
// for which no line is printed, because nodes report once a second.
const (
	repeatInterval = 10 * time.Second
	silentPolls    = 2
)

func (w *watcher) show(lag []laggard) {
	text := "waiting: " + names(lag)
	if w.ErrTerminal {
		w.text(text)
		return
	}
	key := strings.Join(lists.Mapped(lag, func(l laggard) string { return l.Node }), ",")
	if w.polls++; w.polls > silentPolls && key != w.last && w.Now().Sub(w.shownAt) >= repeatInterval {
		w.last, w.shownAt = key, w.Now()
		w.Note("%s", text)
	}
}

// revisionWait waits until each node of the fleet has applied a revision, and no longer has
// connections that the caller waits for. Nodes may join and leave during the wait.
type revisionWait struct {
	revision int64
	// named lists the nodes to wait for, whether they are present or missing. If empty, all present
	// nodes are awaited.
	named []string
	// drains selects the drains whose connections are awaited. If nil, no connections are awaited.
	drains func(schema.NodeDrain) bool

	seen map[string]lastSeen
	// done lists the nodes that have finished. left lists the nodes that left before they finished,
	// which are no longer awaited.
	done, left []string
	// problems maps the nodes in done to the problems that they report, as sentences.
	problems map[string][]string
}

// lastSeen is the last known state of a node.
type lastSeen struct {
	at   time.Time
	done bool
}

// absence is how long a missing node is awaited if the user did not name it. A node that restarts,
// or whose lease expired during an outage, returns sooner.
const absence = 15 * time.Second

// laggard is a node that is still awaited, with the reason.
type laggard struct {
	Node string `json:"node"`
	// Revision is the revision that the node has applied, or 0 if it is unknown.
	Revision int64 `json:"revision"`
	// Connections is the number of the node's remaining connections.
	Connections uint64 `json:"connections"`
	Why         string `json:"why"`
}

// awaited updates the wait with the current nodes, and returns the nodes that are still awaited,
// ordered by name.
func (v *revisionWait) awaited(nodes []fleet.Node, now time.Time) []laggard {
	if v.seen == nil {
		v.seen = map[string]lastSeen{}
	}
	var lag []laggard
	present := map[string]bool{}
	v.done, v.left = nil, nil
	v.problems = map[string][]string{}
	for i := range nodes {
		n := &nodes[i]
		if n.Live == nil || len(v.named) > 0 && !slices.Contains(v.named, n.Name) {
			continue
		}
		l := v.reason(n)
		present[n.Name], v.seen[n.Name] = true, lastSeen{now, l.Why == ""}
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
		if present[name] {
			continue
		}
		switch s := v.seen[name]; {
		case s.done:
			v.done = append(v.done, name) // the node will have the same state when it returns
		case len(v.named) > 0 || now.Sub(s.at) < absence:
			lag = append(lag, laggard{Node: name, Why: "has disappeared"})
		default:
			v.left = append(v.left, name)
		}
		present[name] = true
	}
	for _, name := range v.named {
		if !present[name] {
			lag = append(lag, laggard{Node: name, Why: "does not exist"})
		}
	}
	slices.Sort(v.done)
	slices.SortFunc(lag, func(a, b laggard) int { return strings.Compare(a.Node, b.Node) })
	return lag
}

// reason returns the reason why a present node is awaited. If the node has finished, Why is "".
func (v *revisionWait) reason(n *fleet.Node) laggard {
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
		l.Why = "has " + wording.Count(l.Connections, "connection")
	case v.drains != nil && mayOmitConnections(n.Status):
		l.Why = fmt.Sprintf("has %d draining endpoints that its status omits", n.Status.DrainsOmitted)
	}
	return l
}

// mayOmitConnections reports whether the drains that a status omits may have connections. An
// omitted drain has at most as many connections as the last listed drain, or any number if the
// status lists none.
func mayOmitConnections(s *schema.NodeStatus) bool {
	n := len(s.Drains)
	return s.DrainsOmitted > 0 && (n == 0 || s.Drains[n-1].Active > 0)
}

func left(lag []laggard) (n uint64) {
	for _, l := range lag {
		n += l.Connections
	}
	return n
}

// names lists the first nodes with their reasons, and counts the remaining nodes.
func names(lag []laggard) string {
	const maxNodes = 5
	text := strings.Join(lists.Mapped(lag[:min(len(lag), maxNodes)], func(l laggard) string { return l.Node + " " + l.Why }), ", ")
	if more := len(lag) - maxNodes; more > 0 {
		text += fmt.Sprintf(" and %s more", wording.Count(more, "node"))
	}
	return text
}

// Nodes are polled at fleetInterval, because they report once a second. An etcd outage that lasts
// longer than fleetPatience ends the wait.
const (
	fleetInterval = time.Second
	fleetPatience = 5 * time.Minute
)

// errNoNode is returned by a wait that finds no nodes.
var errNoNode = errors.New("no node runs vipd: etcd has no node status under this prefix")

// poll polls the nodes until none is awaited, and calls show with the awaited nodes. If it fails,
// it also returns the nodes that are still awaited. Short etcd outages do not end the wait.
func (v *revisionWait) poll(c *cli.Call, show func([]laggard)) (lag []laggard, err error) {
	err = poll(c, pace{fleetInterval, fleetPatience}, func() (bool, error) {
		nodes, err := c.Writer.Statuses(c)
		if err != nil {
			return false, err
		}
		if lag = v.awaited(nodes, c.Now()); len(lag) > 0 {
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
