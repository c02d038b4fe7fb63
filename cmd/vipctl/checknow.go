package main

import (
	"context"
	"fmt"
	"strings"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
)

func checkNowVerb() *verb {
	return &verb{
		name: "check-now", args: "SERVICE ADDRESS[:PORT]", brief: "run an endpoint's health check once, and show the exchange",
		about: "The daemon of this host runs the health check of an endpoint once. Prints what was sent (>), what was received " +
			"(<), other events (*), and the result. The exit code is 0 if the check passed, else 1. The result does not " +
			"count: the endpoint's state and the time of its next check stay as they are.\n\n" +
			"An endpoint that is checked at several ports needs PORT too. Values of headers that carry secrets are not shown.",
		example: "vipctl check-now web 192.168.1.11",
		formats: []string{formTable, formJSON},
		least:   1, most: 2,
		complete: inTurn(serviceNames, checkedAddresses),
		run:      runCheckNow,
	}
}

func runCheckNow(c *call) error {
	at := endpointArgs(c.args)
	if len(at) < 2 {
		return wrongUse("\"vipctl check-now\" needs %s; for example: %s", c.verb.args, c.verb.example)
	}
	q := api.CheckRequest{Service: balancer.Name(at[0]), Address: at[1]}
	if _, err := balancer.ParseTarget(q.Service, q.Address); err != nil {
		return wrongUse("%v", err)
	}
	r, err := askDaemon(c, func(d *api.Client, ctx context.Context) (api.CheckResult, error) { return d.Check(ctx, q) })
	if err != nil {
		return err
	}
	if err := c.show(r, func() string { return checkText(c.printer, &r) }); err != nil || r.Outcome == string(health.Passed) {
		return err
	}
	return errReported
}

// checkText is the exchange, and what it came to.
func checkText(p *printer, r *api.CheckResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s: %s check of %s\n", r.Service, r.Address, r.Type, r.At)
	for line := range strings.Lines(r.Exchange) {
		fmt.Fprintln(&b, strings.TrimRight(table.Line(line), " "))
	}
	verdict, style, why := "failed", table.Bad, r.Text
	switch r.Outcome {
	case string(health.Passed):
		verdict, style = "passed", table.Good
	case string(health.NotRun):
		verdict, style = "could not run on this host, which says nothing about the endpoint", table.Notice
		why = strings.TrimPrefix(why, "not run: ") // which is said in more words
	}
	fmt.Fprintf(&b, "%s: %s\n", p.paint("the check "+verdict, style), table.Line(oneLine(why)))
	if stands := string(r.Health); stands == "" {
		b.WriteString("this does not count; no check that counts is over yet\n")
	} else {
		fmt.Fprintf(&b, "this does not count; by the checks that do, the endpoint is %s\n", stands)
	}
	return b.String()
}

// checkedAddresses are where the daemon checks a service's endpoints.
func checkedAddresses(c *call, before []string) (out []string) {
	for _, e := range endpointsOf(c, balancer.Name(before[0])) {
		if e.Check != nil {
			out = append(out, e.Address)
		}
	}
	return out
}
