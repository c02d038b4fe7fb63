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
		About: "Makes the services in etcd what FILE says: creates missing ones, updates those that differ, and leaves the " +
			"others alone. FILE is TOML or JSON; -f may be repeated, and takes a folder (its *.toml and *.json) and - " +
			"(standard input). JSON is {\"services\": {NAME: {...}}}, as \"vipctl export -o json\" prints it; the outer object " +
			"may be left out.\n\n" +
			"Everything is checked first, also against etcd: two services can't have the same address, port and protocol, or " +
			"the same node port. If anything is wrong, nothing is written. Then each service is written in one transaction, " +
			"which adds to its history. If someone else changed a service meanwhile, their change stays, and the error names " +
			"them and the time. Settings of addresses ([vips.\"ADDRESS\"]) are written beside the services.\n\n" +
			"Fields that this version does not know are errors, unless the service has them in etcd already. The last line " +
			"names the revision that \"vipctl wait\" waits for.\n\n" +
			"With --confirm, etcd keeps the changes beside the services, and the hosts of --on serve them at once. \"vipctl confirm\" then writes " +
			"them for all hosts. Otherwise each host reverts them when the time is over, also without etcd, or by \"vipctl abort\". Removals, settings " +
			"of addresses and services that need new addresses of pools can't be pending.",
		Example: "vipctl apply -f services.toml --dry-run",
		Flags: []cli.Flag{
			recursiveFlag(),
			fileFlag("apply this `FILE` or folder; - reads standard input; may be repeated"),
			dryRunFlag(),
			&cli.BoolFlag{Name: "prune", Usage: "remove from etcd the services and address settings that no FILE defines"},
			&cli.DurationFlag{Name: "confirm", Usage: "revert the changes after this `TIME`, such as 10m, unless they are confirmed"},
			&cli.StringFlag{Name: "on", Usage: "with --confirm: apply the change only on these `NODES`, separated by commas: names, zone=ZONE, or a share such as 10%"},
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
