package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
)

func applyVerb() *verb {
	return &verb{
		name: "apply", args: "-f FILE", brief: "write services to etcd",
		about: "Makes the services in etcd what FILE says: creates missing ones, updates those that differ, and leaves the " +
			"others alone. FILE is TOML or JSON; -f may be repeated, and takes a folder (its *.toml and *.json) and - " +
			"(standard input). JSON is {\"services\": {NAME: {...}}}, as \"vipctl export -o json\" prints it; the outer object " +
			"may be left out.\n\n" +
			"Everything is checked first, also against etcd: two services can't have the same address, port and protocol, or " +
			"the same node port. If anything is wrong, nothing is written. Then each service is written in one transaction, " +
			"which adds to its history. If someone else changed a service meanwhile, their change stays, and the error names " +
			"them and the time. Settings of addresses ([vips.\"ADDRESS\"]) are written beside the services.\n\n" +
			"Fields that this version does not know are errors, unless the service has them in etcd already. The last line " +
			"names the revision that \"vipctl wait\" waits for.",
		example: "vipctl apply -f services.toml --dry-run",
		flags: []cli.Flag{
			recursiveFlag(),
			fileFlag("the `FILE` or folder to apply, or - for standard input; may be repeated"),
			dryRunFlag(),
			&cli.BoolFlag{Name: "prune", Usage: "remove the services and settings of addresses in etcd that no FILE defines"},
			&cli.BoolFlag{Name: "allow-unknown", Usage: "write fields that this version does not know as they are"},
		},
		formats: []string{formTable, formJSON}, fleet: true,
		run: runApply, traced: true,
	}
}

func runApply(c *call) error {
	places := c.flags.StringSlice("file")
	if len(places) == 0 {
		return wrongUse("\"vipctl apply\" needs -f FILE; for example: %s", c.verb.example)
	}
	g, err := readGiven(c, places, c.flags.Bool("recursive"))
	if err != nil {
		return err
	}
	prune := c.flags.Bool("prune")
	if err := g.sufficient(places, prune); err != nil {
		return err
	}
	e := newEdit(c, g.changes(c.flags.Bool("allow-unknown")), g.problems)
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
	return e.finish(c.flags.Bool("dry-run"))
}

// sufficient refuses files that define nothing: most likely they are not what they were meant to be, and pruning by
// them would remove everything.
func (g *given) sufficient(places []string, prune bool) error {
	switch {
	case len(g.problems) > 0 && slices.ContainsFunc(g.problems, isError):
		return nil // which says more
	case len(g.services)+len(g.vips) == 0:
		return fmt.Errorf("%s: no service is defined there; \"vipctl delete\" removes services", strings.Join(places, ", "))
	case prune && len(g.bare) > 0:
		return fmt.Errorf("%s: no service is defined there, which --prune does not take for granted: leave the file out", g.bare[0])
	}
	return nil
}

func isError(p balancer.Problem) bool { return p.Severity == balancer.SeverityError }
