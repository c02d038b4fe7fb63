package main

import (
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
)

func applyVerb() *cli.Verb {
	return &cli.Verb{
		Name: "apply", Args: "-f FILE", Brief: "write services to etcd",
		About: `Creates or updates services in etcd so that they match FILE. Other services
stay unchanged. FILE is TOML or JSON. -f may be repeated, and accepts a folder
(its *.toml and *.json files) or - for standard input. The JSON form is
{"services": {NAME: {...}}}, as printed by "vipctl export -o json"; the outer
object is optional.

All services are checked before anything is written: two services can't have
the same address, port and protocol, or the same node port. Each service is
then written in one transaction, which adds a version to its history. If
someone else changes a service at the same time, that change stays, and the
error names its author and time. Address settings ([vips."ADDRESS"]) are also
written.

Unknown fields are errors, unless the service in etcd already has them. The
last line of the output contains the revision for "vipctl wait".

With --confirm, the change is pending: all hosts use it at once, or with --on
only those hosts. "vipctl confirm" writes it for all hosts. After "vipctl
abort", or if nobody confirms in time, each host reverts it, even without
etcd. A pending change can't remove services, change address settings, or
allocate addresses from pools.`,
		Example: "vipctl apply -f services.toml --dry-run",
		Flags: []cli.Flag{
			recursiveFlag(),
			fileFlag("apply this `FILE` or folder; - reads standard input; may be repeated"),
			dryRunFlag(),
			&cli.BoolFlag{Name: "prune", Usage: "remove from etcd the services and address settings that no FILE defines"},
			&cli.DurationFlag{Name: "confirm", Usage: "revert the changes after this `TIME`, such as 10m, unless they are confirmed"},
			&cli.StringFlag{Name: "on", Usage: "with --confirm: apply the change only on these `NODES`, separated by commas: names, zone=ZONE, or a percentage such as 10%"},
			&cli.BoolFlag{Name: "allow-unknown", Usage: "accept fields that this version does not know, and write them unchanged"},
		},
		Formats: []string{cli.FormTable, cli.FormJSON}, Fleet: true,
		Run: cli.Traced(runApply),
	}
}

func runApply(c *cli.Call) error {
	places := c.Flags.StringSlice("file")
	if len(places) == 0 {
		return cli.WrongUse("\"vipctl apply\" needs -f FILE; for example: %s", c.Verb.Example)
	}
	g, err := readGiven(c, places, c.Flags.Bool("recursive"))
	if err != nil {
		return err
	}
	prune := c.Flags.Bool("prune")
	if err := checkTrial(c); err != nil {
		return err
	}
	if err := g.sufficient(places, prune); err != nil {
		return err
	}
	e := newEdit(c, g.changes(), g.problems)
	e.plan.AllowUnknown = c.Flags.Bool("allow-unknown")
	if slices.ContainsFunc(e.plan.Problems, isError) {
		return e.refuse()
	}
	if err := e.read(); err != nil {
		return err
	}
	if err := e.wantVIPs(g, prune); err != nil {
		return err
	}
	if prune {
		e.removeOthers(g)
	}
	if err := e.judge(); err != nil {
		return err
	}
	if c.Flags.IsSet("confirm") && !c.Flags.Bool("dry-run") {
		return e.try(g)
	}
	return e.finish(c.Flags.Bool("dry-run"))
}

// sufficient returns an error if the files define nothing or, with prune, if one of them defines
// nothing. An empty file is probably a mistake, and pruning would remove its services.
func (g *given) sufficient(places []string, prune bool) error {
	switch {
	case len(g.problems) > 0 && slices.ContainsFunc(g.problems, isError):
		return nil // the printed problems have the details
	case len(g.services)+len(g.vips) == 0:
		return fmt.Errorf("%s: no service is defined; \"vipctl delete\" removes services", strings.Join(places, ", "))
	case prune && len(g.bare) > 0:
		return fmt.Errorf("%s: no service is defined there, and --prune requires a service in each file: leave the file out", g.bare[0])
	}
	return nil
}

func isError(p balancer.Problem) bool { return p.Severity == balancer.SeverityError }
