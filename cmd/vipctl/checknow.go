package main

import (
	"context"
	"fmt"
	"strings"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
)

func checkNowVerb() *cli.Verb {
	return &cli.Verb{
		Name: "check-now", Args: "SERVICE ADDRESS[:PORT]|--direct [SERVICE]", Brief: "run an endpoint's health check once, and show the exchange",
		About: `Makes this host's daemon run the health check of an endpoint once. It prints
what was sent (>), what was received (<), other events (*), and the result.
The exit code is 0 if the check passed, otherwise 1. The result does not
change the endpoint's state or the time of its next check.

ADDRESS may be a DNS name: all its addresses are then checked, and JSON output
is a list. If an endpoint is checked at several ports, PORT is required. The
values of secret headers, and texts that tcp and udp checks send, are not
shown.

With --direct, it tests the path from this gateway to the endpoints of
services with forward = "dr", or only of SERVICE. Three conditions must hold:
no host on their link answers ARP or neighbor discovery for the VIP, the
endpoints accept TCP connections to the VIP, and their replies to other
networks do not pass through this host. The test sends ARP requests and TCP
segments. Each failure is printed with its remedy, and the exit code is then
1.`,
		Example:  "vipctl check-now web 192.168.1.11",
		Formats:  []string{cli.FormTable, cli.FormJSON},
		Flags:    []cli.Flag{&cli.BoolFlag{Name: "direct", Usage: "test the path to the real servers of direct-routing services"}},
		MaxArgs:  2,
		Complete: cli.InTurn(serviceNames, checkedAddresses),
		Run:      runCheckNow,
	}
}

func runCheckNow(c *cli.Call) error {
	if c.Flags.Bool("direct") {
		return checkDirect(c)
	}
	at := endpointArgs(c.Args)
	if len(at) < 2 {
		return cli.WrongUse("\"vipctl check-now\" needs %s; for example: %s", c.Verb.Args, c.Verb.Example)
	}
	q := api.CheckRequest{Service: balancer.Name(at[0]), Address: at[1]}
	if _, _, err := balancer.ParseEndpoint(q.Service, q.Address); err != nil {
		if name := lookup.HostName(q.Address); name != "" {
			return checkName(c, q.Service, name)
		}
		return cli.WrongUse("%v", err)
	}
	r, err := cli.AskDaemon(c, func(d *api.Client, ctx context.Context) (api.CheckResult, error) { return d.Check(ctx, q) })
	if err != nil {
		return err
	}
	if err := c.Show(r, func() string { return checkText(c.Printer, &r) }); err != nil || r.Outcome == string(health.Passed) {
		return err
	}
	return cli.ErrReported
}

// checkName checks each endpoint whose DNS name is name, and prints the results. It returns an
// error if a check does not pass.
func checkName(c *cli.Call, service balancer.Name, name string) error {
	all, err := cli.AskDaemon(c, (*api.Client).Endpoints)
	if err != nil {
		return err
	}
	failed := false
	var results []api.CheckResult
	for _, e := range all {
		if e.Service != service || e.Check == nil || lookup.HostName(e.Name) != name {
			continue
		}
		q := api.CheckRequest{Service: service, Address: e.Address}
		r, err := cli.AskDaemon(c, func(d *api.Client, ctx context.Context) (api.CheckResult, error) { return d.Check(ctx, q) })
		if err != nil {
			return err
		}
		results, failed = append(results, r), failed || r.Outcome != string(health.Passed)
	}
	if results == nil {
		return fmt.Errorf("service %s has no checked endpoint with the name %s", service, name)
	}
	err = c.Show(results, func() string {
		texts := lists.Mapped(results, func(r api.CheckResult) string { return checkText(c.Printer, &r) })
		return fmt.Sprintf("%s now has %s\n\n", name, wording.Count(len(results), "checked endpoint")) + strings.Join(texts, "\n")
	})
	if err != nil || !failed {
		return err
	}
	return cli.ErrReported
}

// checkText formats a check's exchange and result.
func checkText(p *cli.Printer, r *api.CheckResult) string {
	var b strings.Builder
	if n := len(r.Checks); n > 0 {
		fmt.Fprintf(&b, "%s/%s: %d checks\n", r.Service, r.Address, n)
	} else {
		fmt.Fprintf(&b, "%s/%s: %s check of %s\n", r.Service, r.Address, r.Type, r.At)
	}
	for line := range strings.Lines(r.Exchange) {
		fmt.Fprintln(&b, strings.TrimRight(table.Line(line), " "))
	}
	verdict := "failed"
	style := table.Bad
	why := r.Text
	switch r.Outcome {
	case string(health.Passed):
		verdict, style = "passed", table.Good
	case string(health.NotRun):
		verdict, style = "could not run on this host, so the endpoint's state is unknown", table.Notice
		why = strings.TrimPrefix(why, "not run: ") // the verdict already says this
	}
	fmt.Fprintf(&b, "%s: %s\n", p.Paint("the check "+verdict, style), table.Line(cli.OneLine(why)))
	if stands := string(r.Health); stands == "" {
		b.WriteString("this result does not count; no regular check has finished yet\n")
	} else {
		fmt.Fprintf(&b, "this result does not count; according to the regular checks, the endpoint is %s\n", stands)
	}
	return b.String()
}

// checkedAddresses returns the addresses at which the daemon checks a service's endpoints.
func checkedAddresses(c *cli.Call, before []string) (out []string) {
	for _, e := range endpointsOf(c, balancer.Name(before[0])) {
		if e.Check != nil {
			out = append(out, e.Address)
		}
	}
	return out
}
