package main

import (
	"context"
	"fmt"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
)

func connsVerb() *verb {
	return &verb{
		name: "conns", args: "[SERVICE]", brief: "live connections",
		about: "Lists the connections that are open now: client, frontend, endpoint, state and age. -o wide adds the " +
			"service and the bytes from and to the client.\n\n" +
			"In kernel modes they are what the kernel remembers: some have ended already, and age and bytes are there only " +
			"where it notes them (net.netfilter.nf_conntrack_timestamp and nf_conntrack_acct).",
		example:  "vipctl conns web",
		formats:  []string{formTable, formWide, formJSON},
		most:     1,
		complete: inTurn(serviceNames),
		run:      runConns,
	}
}

func runConns(c *call) error {
	service := c.argument(0)
	conns, err := askDaemon(c, func(d *api.Client, ctx context.Context) ([]api.Connection, error) { return d.Connections(ctx, service) })
	if err != nil {
		return err
	}
	if len(conns) == 0 && service != "" {
		if err := c.isService(service); err != nil {
			return err
		}
	}
	t := table.New(
		table.Column{Title: "CLIENT"}, table.Column{Title: "FRONTEND"}, table.Column{Title: "ENDPOINT"},
		table.Column{Title: "STATE"}, table.Column{Title: "AGE", Right: true}, table.Column{Title: "SERVICE", Wide: true},
		table.Column{Title: "IN", Wide: true, Right: true}, table.Column{Title: "OUT", Wide: true, Right: true},
	)
	for _, n := range conns {
		backend := ""
		if n.Backend.IsValid() {
			backend = n.Backend.String()
		}
		in, out := transferred(n.In, n.Out)
		t.Row(n.Client.String(), n.Frontend.String(), backend, n.State, c.elapsed(n.Since), string(n.Service), in, out)
	}
	empty := "there are no connections"
	if service != "" {
		empty = fmt.Sprintf("%s has no connections", service)
	}
	return c.printRows(list(conns), t, empty)
}
