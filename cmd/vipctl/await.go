package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
	"vipd/dataplane"
)

// await polls until the drain is complete. It does not follow a stream of changes, because the
// daemon does not report the end of a connection.
func (d *daemonOverride) await() error {
	client, err := d.Client()
	if err != nil {
		return err
	}
	progress := &progress{Printer: d.Printer}
	left := uint64(0)
	err = poll(d.Call, pace{250 * time.Millisecond, firstPatience}, func() (bool, error) {
		endpoints, err := client.Endpoints(d)
		if err != nil {
			return false, err
		}
		n, closed := countTargets(endpoints, d.targets)
		if closed && n == 0 { // the cheap counts omit endpoints and services without a definition
			conns, err := client.Connections(d, dataplane.ConnectionQuery{})
			if n = countOpen(conns, d.targets); err != nil || n == 0 {
				return err == nil, err
			}
		}
		left = n
		progress.text(wording.Count(left, "connection") + " left")
		return false, nil
	})
	progress.end()
	return printOutcome(d.Call, err, d.targets, left, "", "")
}

// printOutcome prints how the wait for a drain ended. err is nil if the drain is complete. left is
// the number of connections that were left at the last poll. stillOn is text that names the nodes
// that still have connections. doneOn is text with the number of the other nodes.
func printOutcome(c *cli.Call, err error, targets []api.OverrideTarget, left uint64, stillOn, doneOn string) error {
	switch {
	case err != nil && c.Err() != nil:
		return printAbandoned(c, left, stillOn)
	case err != nil:
		return fmt.Errorf("waiting for the drain, which stays in place: %w", err)
	case c.Format == cli.FormJSON:
		return nil
	}
	how := ""
	inTime := func(t api.OverrideTarget) bool {
		return t.Override == nil || t.Override.Until.IsZero() || c.Now().Before(t.Override.Until)
	}
	if left > 0 && slices.ContainsFunc(targets, func(t api.OverrideTarget) bool { return !inTime(t) }) {
		how = fmt.Sprintf(": up to %s were cut, because they did not end in time", wording.Count(left, "connection"))
	}
	return c.Print(fmt.Sprintf("drained: %s, no connections left%s%s\n", wording.Count(len(targets), "endpoint"), doneOn, how))
}

// printAbandoned reports that the wait ended before the drain was complete, and how many
// connections remain. where names the nodes with these connections.
func printAbandoned(c *cli.Call, left uint64, where string) error {
	command := strings.Join(c.Args, " ")
	if node := c.Flags.String("node"); node != "" {
		command = "--node " + node
	}
	if where != "" {
		where = " (" + where + ")"
	}
	state := fmt.Sprintf(" with %s left%s; the drain stays in place, \"vipctl undrain %s\" removes it", wording.Count(left, "connection"), where, command)
	if errors.Is(c.Err(), context.Canceled) {
		return cli.Interrupted("%s", state)
	}
	return fmt.Errorf("%w%s", c.Err(), state)
}

// unused is an endpoint's state on a port for which its service has no frontend.
const unused balancer.BackendState = "unused"

// countTargets counts the connections of the targets' endpoints. closed reports whether none of
// these endpoints gets new connections.
func countTargets(endpoints []api.Endpoint, targets []api.OverrideTarget) (left uint64, closed bool) {
	closed = true
	for i := range endpoints {
		e := &endpoints[i]
		if isAtAny(e.Service, e.Address, targets) {
			left += e.Active
			closed = closed && (e.State == balancer.Draining || e.State == balancer.Removed || e.State == unused)
		}
	}
	return left, closed
}

// countOpen counts the targets' open connections. It omits closed TCP connections, which the kernel
// remembers for minutes, and idle UDP flows, which the kernel remembers for at least 30 s.
func countOpen(conns []api.Connection, targets []api.OverrideTarget) (left uint64) {
	for i := range conns {
		if isLive(&conns[i]) && isAtAny(conns[i].Service, conns[i].Backend.String(), targets) {
			left++
		}
	}
	return left
}

func isAtAny(service balancer.Name, endpoint string, targets []api.OverrideTarget) bool {
	return slices.ContainsFunc(targets, func(t api.OverrideTarget) bool {
		return t.Service == service && isAt(endpoint, t.Address)
	})
}

// isAt reports whether an endpoint's ADDRESS[:PORT] matches target, which is ADDRESS or
// ADDRESS:PORT.
func isAt(endpoint, target string) bool {
	at, err := balancer.ParseTarget("", endpoint)
	t, err2 := balancer.ParseTarget("", target)
	return err == nil && err2 == nil && t.Addr == at.Addr && (t.Port == at.Port || t.Port == 0)
}

// progress reports how far a wait has come on a single terminal line, which it overwrites.
type progress struct {
	*cli.Printer
	width int // the widest line so far
}

func (p *progress) text(text string) {
	if !p.ErrTerminal {
		return
	}
	text = table.Cut(text, cmp.Or(p.Width, cli.UsualColumns)-1)
	fmt.Fprintf(p.Stderr, "\r%-*s", p.width, text)
	p.width = max(p.width, table.Width(text))
}

func (p *progress) end() {
	if p.width > 0 {
		_, _ = io.WriteString(p.Stderr, "\r"+strings.Repeat(" ", p.width)+"\r")
	}
}
