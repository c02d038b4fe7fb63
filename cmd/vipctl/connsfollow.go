package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"vipd/cmd/internal/api"
	"vipd/dataplane"
)

// followConnections prints a line for each connection that begins or ends, until Ctrl-C, and goes on after a restart of vipd.
func (c *call) followConnections(q dataplane.ConnectionQuery) error {
	client, err := c.daemon.client()
	if err != nil {
		return err
	}
	return c.follow(false, func(heard func()) error {
		return client.FollowConnections(c, q, func(e api.ConnectionEvent) error {
			heard()
			switch {
			case e.Event == api.Following && c.format != formJSON:
				c.say("following connections that begin and end; Ctrl-C ends it")
				return nil
			case e.Event == api.Missed && c.format != formJSON:
				c.note("some connections began or ended too fast to be shown")
				return nil
			}
			if err := c.print(c.connectionEvent(&e)); err != nil {
				return &showError{err}
			}
			return nil
		})
	})
}

// connectionEvent is one line.
func (p *printer) connectionEvent(e *api.ConnectionEvent) string {
	if p.format == formJSON {
		text, _ := json.Marshal(e) // plain fields
		return string(text) + "\n"
	}
	n, backend := e.Connection, "-"
	if n.Backend.IsValid() {
		backend = n.Backend.String()
	}
	line := fmt.Sprintf("%s  %-5s  %s  %s  %s  %s", e.At.Local().Format(time.TimeOnly), e.Event, n.Client, n.Frontend, backend, cmp.Or(n.End, n.State))
	if p.format == formWide {
		in, out := transferred(n.In, n.Out)
		line += fmt.Sprintf("  %s  in %s, out %s", n.Service, in, out)
	}
	return line + "\n"
}

// killConnections ends connections, after a question on a terminal.
func (c *call) killConnections(q dataplane.ConnectionQuery) error {
	if q == (dataplane.ConnectionQuery{}) {
		return wrongUse("--kill needs SERVICE, --client, --endpoint or --state; for example: vipctl conns web --client 10.0.0.7 --kill")
	}
	if !c.flags.Bool("yes") {
		sure, err := c.sureToKill(q)
		if err != nil || !sure {
			return err
		}
	}
	k, err := askDaemon(c, func(d *api.Client, ctx context.Context) (api.Killed, error) { return d.Kill(ctx, q, c.operator()) })
	if err != nil {
		return err
	}
	if k.Connections == 0 {
		if err := checkState(q.State); err != nil {
			return err
		}
	}
	return c.show(k, func() string { return fmt.Sprintf("ended: %s\n", count(k.Connections, "connection")) })
}

// sureToKill shows how many connections it is about, and asks.
func (c *call) sureToKill(q dataplane.ConnectionQuery) (bool, error) {
	if !c.errTerminal {
		return false, wrongUse("--kill asks before it ends connections, and here is no terminal; say --yes")
	}
	conns, err := askDaemon(c, func(d *api.Client, ctx context.Context) ([]api.Connection, error) { return d.Connections(ctx, q) })
	if err != nil {
		return false, err
	}
	if len(conns) == 0 {
		if err := checkState(q.State); err != nil {
			return false, err
		}
		c.say("there are no such connections")
		return false, nil
	}
	fmt.Fprintf(c.stderr, "end %s? [y/N] ", count(len(conns), "connection"))
	answer, _ := bufio.NewReader(c.stdin).ReadString('\n') // no answer is no
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		c.say("nothing was ended")
		return false, nil
	}
	return true, nil
}
