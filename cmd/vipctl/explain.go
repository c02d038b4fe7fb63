package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
	"vipd/dataplane/explain"
)

func explainVerb() *cli.Verb {
	return &cli.Verb{
		Name: "explain", Args: "CLIENT[:PORT] VIP:PORT[/PROTOCOL]", Brief: "show what would happen to a connection, and why",
		About: `Shows whether a connection from CLIENT to a VIP would be served, and why. It
shows each step: the host that holds the address, the service with this port,
the source check, affinity with its remaining time, each endpoint with its
share of new connections and the reason for its state, the client address that
the endpoint sees, the way of the reply, and the kernel objects with their
counters. It also names other programs' rules that drop the connection.

The client's open connections are listed too: they stay with their endpoints.
With PORT, only the connection from this port is listed. The first line also
reports an endpoint that left connections unanswered in the last minute.

Nothing is sent, except with --live: the daemon then opens a TCP connection
from this node, and shows the endpoint that accepted it and the time it took.
A line that starts with ! is a reason why the client is not served as
configured. The exit code is 0 if the client is served, otherwise 1.`,
		Example:  "vipctl explain 10.1.0.2 10.96.0.10:80",
		Formats:  []string{cli.FormTable, cli.FormJSON},
		Flags:    []cli.Flag{&cli.BoolFlag{Name: "live", Usage: "also open a connection from this node"}},
		MinArgs:  2,
		MaxArgs:  2,
		Complete: cli.InTurn(cli.OneOf(), frontendKeys),
		Run:      runExplain,
	}
}

func runExplain(c *cli.Call) error {
	client, err := clientArg(c.Args[0])
	if err != nil {
		return cli.WrongUse("%v", err)
	}
	to, err := balancer.ParseKey(c.Args[1])
	if err != nil {
		return cli.WrongUse("%v", err)
	}
	e, err := cli.AskDaemon(c, func(d *api.Client, ctx context.Context) (api.Explanation, error) {
		return d.Explain(ctx, client, to, c.Flags.Bool("live"))
	})
	if err != nil {
		return err
	}
	err = c.Show(e, func() string { return explanation(c.Printer, &e) })
	if err == nil && e.Verdict != explain.Served {
		return cli.ErrReported
	}
	return err
}

// clientArg parses a client's address with an optional port.
func clientArg(text string) (netip.AddrPort, error) {
	t, err := balancer.ParseTarget("", text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not a client's ADDRESS, such as 10.1.0.2 or fd01::2", text)
	}
	return netip.AddrPortFrom(t.Addr, t.Port), nil
}

// explanation formats the verdict and a line for each step.
func explanation(p *cli.Printer, e *api.Explanation) string {
	style := table.Bad
	if e.Verdict == explain.Served {
		style = table.Good
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s to %s: %s\n\n", e.Client, e.To, p.Paint(table.Line(e.Summary), style))
	for _, s := range e.Steps {
		mark := " "
		if s.Wrong {
			mark = p.Paint("!", table.Bad)
		}
		fmt.Fprintf(&b, "%s %-9s %s\n", mark, s.What, table.Line(cli.OneLine(s.Text)))
	}
	if e.Live != nil {
		fmt.Fprintf(&b, "  %-9s %s\n", "live", table.Line(cli.OneLine(liveText(e))))
	}
	return b.String()
}

// liveText describes what happened to the connection that the daemon itself opened.
func liveText(e *api.Explanation) string {
	l, way := e.Live, ""
	connected := l.Connected.Round(10 * time.Microsecond)
	if l.Client.Addr() != e.Client {
		way = ", which shows nothing about the client's path"
	}
	switch {
	case !l.Client.IsValid():
		return fmt.Sprintf("the connection from this node failed after %s: %s", connected, l.Error)
	case l.Error != "":
		return fmt.Sprintf("this node connected from %s in %s%s; the connection's endpoint is unknown: %s", l.Client, connected, way, l.Error)
	}
	return fmt.Sprintf("this node connected from %s in %s%s; %s accepted the connection, and vipd knew this after %s (%s)", l.Client, connected, way, l.Endpoint,
		l.Taken.Round(10*time.Microsecond), l.State)
}

// frontendKeys returns the keys of the daemon's frontends.
func frontendKeys(c *cli.Call, _ []string) []string {
	frontends, _ := cli.AskDaemon(c, (*api.Client).Frontends)
	return lists.Mapped(frontends, func(f api.Frontend) string { return f.Key.String() })
}
