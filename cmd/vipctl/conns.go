package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
	"vipd/dataplane"
)

func connsVerb() *verb {
	return &verb{
		name: "conns", args: "[SERVICE]", brief: "live connections",
		about: "Lists the connections that are open now: client, frontend, endpoint, state and age. -o wide adds the " +
			"service and the bytes from and to the client.\n\n" +
			"In kernel modes they are what the kernel remembers: some have ended already, and age and bytes are there only " +
			"where it notes them (net.netfilter.nf_conntrack_timestamp and nf_conntrack_acct).\n\n" +
			"--follow shows a line for each that begins or ends. The kernel tells the end of a TCP connection when it forgets it, " +
			"which is minutes after it was closed.\n\n" +
			"--kill ends connections: both sides see a reset, in nftables and iptables mode as soon as they send something. In ipvs " +
			"mode the kernel can't end single ones.",
		example:  "vipctl conns web",
		formats:  []string{formTable, formWide, formJSON},
		values:   map[string]completer{"service": serviceNames},
		flags:    connectionFlags(),
		most:     1,
		complete: inTurn(serviceNames),
		run:      runConns,
	}
}

// connectionFlags narrow connections.
func connectionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "service", Usage: "only those of the service `NAME`"},
		&cli.StringFlag{Name: "client", Usage: "only those from a client's `ADDRESS[:PORT]`"},
		&cli.StringFlag{Name: "endpoint", Usage: "only those to an endpoint's `ADDRESS[:PORT]`"},
		&cli.StringFlag{Name: "state", Usage: "only those in the `STATE`, a word of the column"},
		&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "show those that begin and end, until Ctrl-C"},
		&cli.BoolFlag{Name: "kill", Usage: "end them; asks first"},
		&cli.BoolFlag{Name: "yes", Usage: "with --kill: don't ask"},
	}
}

func runConns(c *call) error {
	q, err := connectionQuery(c)
	follow, kill := c.flags.Bool("follow"), c.flags.Bool("kill")
	switch {
	case err != nil:
		return err
	case follow && kill:
		return wrongUse("--follow and --kill don't go together")
	case follow && q.State != "":
		return wrongUse("--follow tells of begins and ends, whatever the state: leave out --state")
	case follow:
		return followConnections(c, q)
	case kill:
		return killConnections(c, q)
	case c.flags.Bool("yes"):
		return wrongUse("--yes goes with --kill alone")
	}
	return printConnections(c, q)
}

func connectionQuery(c *call) (q dataplane.ConnectionQuery, err error) {
	service := c.flags.String("service")
	if given := c.argument(0); given != "" {
		if service != "" && service != given {
			return q, wrongUse("the service is given twice, as %q and as %q", given, service)
		}
		service = given
	}
	q.Service, q.State = balancer.Name(plainService(service)), c.flags.String("state")
	if states := dataplane.States(); q.State != "" && !slices.Contains(states, q.State) {
		return q, wrongUse("--state %q is no state of connections; these are: %s", q.State, strings.Join(states, ", "))
	}
	for flag, at := range map[string]*netip.AddrPort{"client": &q.Client, "endpoint": &q.Backend} {
		if text := c.flags.String(flag); text != "" {
			t, err := balancer.ParseTarget("", text[strings.Index(text, "/")+1:]) // SERVICE/ADDRESS is how endpoints are printed
			if err != nil {
				return q, wrongUse("--%s %q is not ADDRESS or ADDRESS:PORT, such as 10.0.0.7 or [fd00::1]:8080", flag, text)
			}
			*at = netip.AddrPortFrom(t.Addr, t.Port)
		}
	}
	return q, nil
}

// printConnections prints connections as they come, for there may be very many.
func printConnections(c *call, q dataplane.ConnectionQuery) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	list := connectionList{printer: c.printer, table: table.New(
		table.Column{Title: "CLIENT"}, table.Column{Title: "FRONTEND"}, table.Column{Title: "ENDPOINT"},
		table.Column{Title: "STATE"}, table.Column{Title: "AGE", Right: true}, table.Column{Title: "SERVICE", Wide: true},
		table.Column{Title: "IN", Wide: true, Right: true}, table.Column{Title: "OUT", Wide: true, Right: true},
	)}
	if err := client.EachConnection(c, q, list.add); err != nil {
		return err
	}
	if list.listed == 0 && q.Service != "" {
		if err := isService(c, string(q.Service)); err != nil {
			return err
		}
	}
	empty := "there are no connections"
	if q != (dataplane.ConnectionQuery{}) {
		empty = "there are no such connections"
	}
	if q == (dataplane.ConnectionQuery{Service: q.Service}) && q.Service != "" {
		empty = fmt.Sprintf("%s has no connections", q.Service)
	}
	return list.end(empty)
}

// connectionList prints connections while they come.
type connectionList struct {
	*printer
	table  *table.Table
	listed int
	// text is JSON that is not printed yet.
	text []byte
	// all are those that are to be made something of as a whole.
	all []api.Connection
}

// A long list is printed by so many rows, which have the same widths, or so many bytes of JSON.
const (
	partRows  = 1000
	partBytes = 1 << 16
)

func (l *connectionList) add(n api.Connection) error {
	l.listed++
	switch {
	case l.remake != nil:
		l.all = append(l.all, n)
		return nil
	case l.format == formJSON:
		return l.addJSON(n)
	}
	backend := ""
	if n.Backend.IsValid() {
		backend = n.Backend.String()
	}
	in, out := transferred(n.In, n.Out)
	l.table.Row(n.Client.String(), n.Frontend.String(), backend, n.State, elapsed(l.printer, n.Since), string(n.Service), in, out)
	if l.table.Len() < partRows {
		return nil
	}
	return l.print(l.table.Part(l.form()))
}

// addJSON prints one as printJSON does in a list.
func (l *connectionList) addJSON(n api.Connection) error {
	text, err := json.MarshalIndent(n, "  ", "  ") // none of its values has a character that HTML escapes
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
	return l.print(part)
}

func (l *connectionList) end(empty string) error {
	switch {
	case l.remake != nil || l.format == formJSON && l.listed == 0:
		return l.printJSON(list(l.all))
	case l.format == formJSON:
		return l.print(string(l.text) + "\n]\n")
	case l.listed == 0:
		l.say("%s", empty)
		return nil
	case l.table.Len() == 0:
		return nil
	}
	return l.print(l.table.Part(l.form()))
}

// followConnections prints a line for each connection that begins or ends, until Ctrl-C, and goes on after a restart of vipd.
func followConnections(c *call, q dataplane.ConnectionQuery) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	return follow(c, false, func(heard func()) error {
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
			if err := c.print(connectionEvent(c.printer, &e)); err != nil {
				return &showError{err}
			}
			return nil
		})
	})
}

// connectionEvent is one line.
func connectionEvent(p *printer, e *api.ConnectionEvent) string {
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
func killConnections(c *call, q dataplane.ConnectionQuery) error {
	if q == (dataplane.ConnectionQuery{}) {
		return wrongUse("--kill needs SERVICE, --client, --endpoint or --state; for example: vipctl conns web --client 10.0.0.7 --kill")
	}
	if !c.flags.Bool("yes") {
		sure, err := sureToKill(c, q)
		if err != nil || !sure {
			return err
		}
	}
	k, err := askDaemon(c, func(d *api.Client, ctx context.Context) (api.Killed, error) { return d.Kill(ctx, q, operator(c)) })
	if err != nil {
		return err
	}
	return c.show(k, func() string { return fmt.Sprintf("ended: %s\n", wording.Count(k.Connections, "connection")) })
}

// sureToKill shows how many connections it is about, and asks.
func sureToKill(c *call, q dataplane.ConnectionQuery) (bool, error) {
	if !c.errTerminal {
		return false, wrongUse("--kill asks before it ends connections, and here is no terminal; say --yes")
	}
	client, err := c.client()
	if err != nil {
		return false, err
	}
	conns := 0
	err = client.EachConnection(c, q, func(api.Connection) error {
		conns++
		return nil
	})
	if err != nil {
		return false, err
	}
	if conns == 0 {
		c.say("there are no such connections")
		return false, nil
	}
	fmt.Fprintf(c.stderr, "end %s? [y/N] ", wording.Count(conns, "connection"))
	answer, _ := bufio.NewReader(c.stdin).ReadString('\n') // no answer is no
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		c.say("nothing was ended")
		return false, nil
	}
	return true, nil
}
