package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func waitVerb() *verb {
	return &verb{
		name: "wait", args: "--revision R", brief: "return when all nodes have applied a revision of etcd",
		about: "Returns when every running vipd has revision R of etcd in its kernel: the revision that apply, delete, drain or " +
			"your own tool has printed. Nodes that join meanwhile count too. A node that goes away may be restarting: it " +
			"is waited for a while longer, and then left out with a message.\n\n" +
			"With --nodes only these nodes count, and they are waited for until they appear. When --timeout ends, the nodes " +
			"that lag are named, and the exit code is 1. A node that refuses a service has applied the revision, too; " +
			"its problems are printed. While etcd is unreachable, wait goes on waiting.",
		example: "vipctl wait --revision 1042 --timeout 30s",
		flags: []cli.Flag{
			&cli.Int64Flag{Name: "revision", Usage: "what is to be applied, a `NUMBER`"},
			&cli.DurationFlag{Name: "timeout", Usage: "give up after this `TIME`; 0: never"},
			&cli.StringFlag{Name: "nodes", Usage: "wait for these only, `NODE,...`"},
		},
		formats: []string{formTable, formJSON},
		fleet:   true, run: runWait,
	}
}

// waited is what came of a wait.
type waited struct {
	Revision int64 `json:"revision"`
	// Applied are the nodes that have it; Behind those that were waited for in vain; Gone those that went before they
	// had it, and are not waited for.
	Applied []string  `json:"applied"`
	Behind  []laggard `json:"behind"`
	Gone    []string  `json:"gone"`
	// Problems are those of the nodes among Applied: what a node refuses, it has applied without that.
	Problems map[string][]string `json:"problems,omitempty"`
}

func runWait(c *call) error {
	v, timeout, err := c.waitedFor()
	if err != nil {
		return err
	}
	if _, err := c.etcd(); err != nil {
		return err
	}
	bounded := *c
	if timeout > 0 {
		ctx, cancel := context.WithTimeout(c.Context, timeout)
		defer cancel()
		bounded.Context = ctx
	}
	watcher := &watcher{progress: progress{printer: c.printer}}
	lag, err := v.keep(&bounded, watcher.show)
	watcher.end()
	if c.format == formJSON && (err == nil || len(lag) > 0) {
		if err := c.printJSON(waited{v.revision, list(v.done), list(lag), list(v.gone), v.problems}); err != nil {
			return err
		}
	}
	late := errors.Is(err, context.DeadlineExceeded) && c.Err() == nil
	switch {
	case err == nil:
		return c.applied(v)
	case late && len(lag) > 0:
		return fmt.Errorf("revision %d is not everywhere after %s: %s", v.revision, timeout, names(lag))
	case late:
		return fmt.Errorf("no answer of etcd within %s", timeout)
	case len(lag) > 0 && c.Err() != nil:
		return fmt.Errorf("interrupted; revision %d is not everywhere: %s", v.revision, names(lag))
	}
	return err
}

func (c *call) waitedFor() (*vigil, time.Duration, error) {
	v := &vigil{revision: c.flags.Int64("revision")}
	timeout := c.flags.Duration("timeout")
	switch {
	case v.revision <= 0:
		return nil, 0, wrongUse("\"vipctl wait\" needs --revision R, a number above 0; for example: %s", c.verb.example)
	case timeout < 0:
		return nil, 0, wrongUse("--timeout %s is below zero", timeout)
	}
	for name := range strings.SplitSeq(c.flags.String("nodes"), ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(v.named, name) {
			v.named = append(v.named, name)
		}
	}
	return v, timeout, nil
}

// applied says that it is everywhere, and where it is not and was not waited for.
func (c *call) applied(v *vigil) error {
	if len(v.gone) > 0 {
		c.note("no longer waited for, because they went away: %s", strings.Join(v.gone, ", "))
	}
	const most = 5
	for i, name := range slices.Sorted(maps.Keys(v.problems)) {
		if i == most {
			c.note("%s more, which \"vipctl get nodes\" lists", count(len(v.problems)-most, "node"))
			break
		}
		c.note("%s has %s: %s", name, count(len(v.problems[name]), "problem"), v.problems[name][0])
	}
	if c.format == formJSON {
		return nil
	}
	how := ""
	if n := len(v.problems); n > 0 {
		how = fmt.Sprintf(", but %s may not serve all of it", count(n, "node"))
	}
	return c.print(fmt.Sprintf("revision %d is applied on %s%s\n", v.revision, count(len(v.done), "node"), how))
}

// watcher shows which nodes a vigil waits for: on a terminal in one line that changes, elsewhere a line now and then when it is
// others.
type watcher struct {
	progress
	looks int
	last  string
	said  time.Time
}

// sayAgain is the time between two lines, and silentLooks how many looks pass in silence: nodes tell once a second how
// far they are.
const (
	sayAgain    = 10 * time.Second
	silentLooks = 2
)

func (w *watcher) show(lag []laggard) {
	text := "waiting: " + names(lag)
	if w.errTerminal {
		w.text(text)
		return
	}
	key := strings.Join(mapped(lag, func(l laggard) string { return l.Node }), ",")
	if w.looks++; w.looks > silentLooks && key != w.last && w.now().Sub(w.said) >= sayAgain {
		w.last, w.said = key, w.now()
		w.note("%s", text)
	}
}
