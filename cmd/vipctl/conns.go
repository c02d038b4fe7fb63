package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
	"vipd/dataplane"
)

func connsVerb() *cli.Verb {
	return &cli.Verb{
		Name: "conns", Args: "[SERVICE]", Brief: "live connections",
		About: `Lists the open connections with client, frontend, endpoint, state and age. -o
wide adds the service, and the bytes from and to the client.

The kernel remembers closed TCP connections and idle UDP flows for minutes.
They are only counted, in the last line; --state time-wait lists them, and -o
json includes them. In the kernel modes, age and bytes need the sysctls
net.netfilter.nf_conntrack_timestamp and nf_conntrack_acct.

--follow prints a line when a connection starts or ends. The kernel reports
the end of a TCP connection only when it forgets the connection, minutes after
it was closed.

--kill ends the connections that the flags select, and idle UDP flows. Both
sides of a TCP connection receive a reset; in nftables and iptables mode, they
receive it when they next send something. Connections that are already closed
are not counted without --state. In ipvs mode, the kernel can't end single
connections.`,
		Example:  "vipctl conns web",
		Formats:  []string{cli.FormTable, cli.FormWide, cli.FormJSON},
		Values:   map[string]cli.Completer{"service": serviceNames},
		Flags:    connectionFlags(),
		MaxArgs:  1,
		Complete: cli.InTurn(serviceNames),
		Run:      runConns,
	}
}

func connectionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "service", Usage: "show only connections to the service `NAME`"},
		&cli.StringFlag{Name: "client", Usage: "show only connections from a client's `ADDRESS[:PORT]`"},
		&cli.StringFlag{Name: "endpoint", Usage: "show only connections to an endpoint's `ADDRESS[:PORT]`"},
		&cli.StringFlag{Name: "state", Usage: "show only connections in this `STATE`, as in the column STATE"},
		&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "show connections as they start and end, until Ctrl-C"},
		&cli.BoolFlag{Name: "kill", Usage: "end the listed connections, after confirmation"},
		&cli.BoolFlag{Name: "yes", Usage: "with --kill: don't ask for confirmation"},
	}
}

func runConns(c *cli.Call) error {
	q, err := connectionQuery(c)
	follow, kill := c.Flags.Bool("follow"), c.Flags.Bool("kill")
	switch {
	case err != nil:
		return err
	case follow && kill:
		return cli.WrongUse("--follow and --kill can't be combined")
	case follow && q.State != "":
		return cli.WrongUse("--follow shows connections in every state: leave out --state")
	case follow:
		return followConnections(c, q)
	case kill:
		return killConnections(c, q)
	case c.Flags.Bool("yes"):
		return cli.WrongUse("--yes needs --kill")
	}
	return printConnections(c, q)
}

func connectionQuery(c *cli.Call) (q dataplane.ConnectionQuery, err error) {
	service := c.Flags.String("service")
	if given := c.Argument(0); given != "" {
		if service != "" && service != given {
			return q, cli.WrongUse("the service is named twice, as %q and as %q", given, service)
		}
		service = given
	}
	q.Service, q.State = balancer.Name(plainService(service)), c.Flags.String("state")
	if states := dataplane.States(); q.State != "" && !slices.Contains(states, q.State) {
		return q, cli.WrongUse("--state %q is not a connection state; the states are: %s", q.State, strings.Join(states, ", "))
	}
	for flag, at := range map[string]*netip.AddrPort{"client": &q.Client, "endpoint": &q.Backend} {
		if text := c.Flags.String(flag); text != "" {
			t, err := balancer.ParseTarget("", text[strings.Index(text, "/")+1:]) // endpoints are printed as SERVICE/ADDRESS
			if err != nil {
				return q, cli.WrongUse("--%s %q is not ADDRESS or ADDRESS:PORT, such as 10.0.0.7 or [fd00::1]:8080", flag, text)
			}
			*at = netip.AddrPortFrom(t.Addr, t.Port)
		}
	}
	return q, nil
}

// printConnections prints connections as they arrive, because a host may have millions.
func printConnections(c *cli.Call, q dataplane.ConnectionQuery) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	list := connectionList{Printer: c.Printer, all: q.State != "" || c.Format == cli.FormJSON, table: table.New(
		table.Column{Title: "CLIENT"}, table.Column{Title: "FRONTEND"}, table.Column{Title: "ENDPOINT"},
		table.Column{Title: "STATE"}, table.Column{Title: "AGE", Right: true}, table.Column{Title: "SERVICE", Wide: true},
		table.Column{Title: "IN", Wide: true, Right: true}, table.Column{Title: "OUT", Wide: true, Right: true},
	)}
	if err := client.EachConnection(c, q, list.add); err != nil {
		return err
	}
	if list.listed+len(list.omitted) == 0 && q.Service != "" {
		if err := isService(c, string(q.Service)); err != nil {
			return err
		}
	}
	empty := "there are no connections"
	if q != (dataplane.ConnectionQuery{}) {
		empty = "there are no matching connections"
	}
	if q == (dataplane.ConnectionQuery{Service: q.Service}) && q.Service != "" {
		empty = fmt.Sprintf("%s has no connections", q.Service)
	}
	return list.end(empty)
}

// connectionList prints connections in one of the output formats.
type connectionList struct {
	*cli.Printer
	table  *table.Table
	listed int
	// all reports whether connections in every state are listed. If false, only live connections
	// are listed.
	all bool
	// omitted counts the unlisted connections by state. None of them is live.
	omitted map[string]int
	// text holds JSON that has not been printed yet.
	text []byte
	// collected holds the connections for an output format that needs the whole list.
	collected []api.Connection
}

// isLive reports whether a connection counts as live. The kernel also remembers closed connections
// and idle UDP flows, which are not live.
func isLive(c *api.Connection) bool { return !c.Closed() && c.State != dataplane.Idle }

// A long list is printed in parts. partRows is the number of rows in a part. The rows of a part
// have the same column widths. partBytes is the minimum size of a part in JSON.
const (
	partRows  = 1000
	partBytes = 1 << 16
)

func (l *connectionList) add(n api.Connection) error {
	if !l.all && !isLive(&n) {
		if l.omitted == nil {
			l.omitted = map[string]int{}
		}
		l.omitted[n.State]++
		return nil
	}
	l.listed++
	switch {
	case l.Remake != nil:
		l.collected = append(l.collected, n)
		return nil
	case l.Format == cli.FormJSON:
		return l.addJSON(n)
	}
	backend := ""
	if n.Backend.IsValid() {
		backend = n.Backend.String()
	}
	in, out := transferred(n.In, n.Out)
	l.table.Row(n.Client.String(), n.Frontend.String(), backend, n.State, elapsed(l.Printer, n.Since), string(n.Service), in, out)
	if l.table.Len() < partRows {
		return nil
	}
	return l.Print(l.table.Part(l.Form()))
}

// addJSON prints a connection as an element of a JSON array, in the format of PrintJSON.
func (l *connectionList) addJSON(n api.Connection) error {
	text, err := json.MarshalIndent(n, "  ", "  ") // MarshalIndent escapes HTML, which no value contains
	if err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	begin := ",\n  "
	if l.listed == 1 {
		begin = "[\n  "
	}
	if l.text = append(append(l.text, begin...), text...); len(l.text) < partBytes {
		return nil
	}
	part := string(l.text)
	l.text = l.text[:0]
	return l.Print(part)
}

func (l *connectionList) end(empty string) error {
	switch {
	case l.Remake != nil || l.Format == cli.FormJSON && l.listed == 0:
		return l.PrintJSON(lists.NonNil(l.collected))
	case l.Format == cli.FormJSON:
		return l.Print(string(l.text) + "\n]\n")
	case l.listed == 0 && len(l.omitted) == 0:
		l.Say("%s", empty)
		return nil
	}
	text := ""
	if l.table.Len() > 0 {
		text = l.table.Part(l.Form())
	}
	return l.Print(text + omittedText(l.omitted))
}

// omittedText returns a line that reports how many connections of each state were omitted, or "".
func omittedText(omitted map[string]int) string {
	if len(omitted) == 0 {
		return ""
	}
	states := slices.Sorted(maps.Keys(omitted))
	counts := lists.Mapped(states, func(state string) string { return fmt.Sprintf("%d %s", omitted[state], state) })
	return fmt.Sprintf("connections that are not live are omitted: %s; --state %s lists them\n", wording.List(counts, "and"), states[len(states)-1])
}

// followConnections prints a line for each connection that starts or ends, until Ctrl-C. If vipd
// restarts, it continues with the new vipd.
func followConnections(c *cli.Call, q dataplane.ConnectionQuery) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return follow(c, false, func(received func()) error {
		return client.FollowConnections(c, q, func(e api.ConnectionEvent) error {
			received()
			switch {
			case e.Event == api.Following && c.Format != cli.FormJSON:
				c.Say("showing connections as they start and end; press Ctrl-C to stop")
				return nil
			case e.Event == api.Missed && c.Format != cli.FormJSON:
				c.Note("some connections started or ended too fast to be shown")
				return nil
			}
			if err := c.Print(connectionEvent(c.Printer, &e)); err != nil {
				return &showError{err}
			}
			return nil
		})
	})
}

func connectionEvent(p *cli.Printer, e *api.ConnectionEvent) string {
	if p.Format == cli.FormJSON {
		text, _ := json.Marshal(e) // all its fields can be encoded
		return string(text) + "\n"
	}
	n, backend := e.Connection, "-"
	if n.Backend.IsValid() {
		backend = n.Backend.String()
	}
	line := fmt.Sprintf("%s  %-5s  %s  %s  %s  %s", e.At.Local().Format(time.TimeOnly), e.Event, n.Client, n.Frontend, backend, cmp.Or(n.End, n.State))
	if p.Format == cli.FormWide {
		in, out := transferred(n.In, n.Out)
		line += fmt.Sprintf("  %s  in %s, out %s", n.Service, in, out)
	}
	return line + "\n"
}

// killConnections ends connections. On a terminal it asks for confirmation first.
func killConnections(c *cli.Call, q dataplane.ConnectionQuery) error {
	if q == (dataplane.ConnectionQuery{}) {
		return cli.WrongUse("--kill needs SERVICE, --client, --endpoint or --state; for example: vipctl conns web --client 10.0.0.7 --kill")
	}
	if !c.Flags.Bool("yes") {
		sure, err := sureToKill(c, q)
		if err != nil || !sure {
			return err
		}
	}
	k, err := cli.AskDaemon(c, func(d *api.Client, ctx context.Context) (api.Killed, error) { return d.Kill(ctx, q, operator(c)) })
	if err != nil {
		return err
	}
	return c.Show(k, func() string { return fmt.Sprintf("ended: %s\n", wording.Count(k.Connections, "connection")) })
}

// sureToKill shows how many connections would be ended, and asks for confirmation.
func sureToKill(c *cli.Call, q dataplane.ConnectionQuery) (bool, error) {
	if !c.ErrTerminal {
		return false, cli.WrongUse("--kill asks for confirmation, but there is no terminal: add --yes to end the connections without it")
	}
	client, err := c.Client()
	if err != nil {
		return false, err
	}
	conns := 0
	err = client.EachConnection(c, q, func(n api.Connection) error {
		if q.State != "" || !n.Closed() {
			conns++
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if conns == 0 {
		c.Say("there are no matching connections")
		return false, nil
	}
	fmt.Fprintf(c.Stderr, "end %s? [y/N] ", wording.Count(conns, "connection"))
	answer, _ := bufio.NewReader(c.Stdin).ReadString('\n') // an unreadable answer means no
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		c.Say("no connection was ended")
		return false, nil
	}
	return true, nil
}
