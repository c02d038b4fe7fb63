package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/store/etcd"
)

func deleteVerb() *verb {
	return &verb{
		name: "delete", args: "service NAME...", brief: "remove services from etcd",
		about: "Removes services from etcd, with their overrides and with those of their endpoints that no registrar keeps " +
			"there. Their connections may live on for drain_timeout. If one of the names is not there, nothing is removed.\n\n" +
			"The history stays: \"vipctl rollback SERVICE N\" brings a service back.",
		example: "vipctl delete service web",
		flags:   []cli.Flag{dryRunFlag()},
		formats: []string{formTable, formJSON}, fleet: true,
		least: 2, most: -1, spellOut: withKind,
		complete: func(c *call, before []string) []string {
			if len(before) == 0 {
				return []string{"service"}
			}
			return fleetNames(c, before)
		},
		run: runDelete, traced: true,
	}
}

func runDelete(c *call) error {
	if strings.TrimSuffix(c.args[0], "s") != "service" {
		return wrongUse("delete removes services, not %q; for example: %s", c.args[0], c.verb.example)
	}
	if _, err := c.etcd(); err != nil {
		return err
	}
	names := slices.Clone(c.args[1:])
	slices.Sort(names)
	var changes []etcd.Change
	for _, name := range slices.Compact(names) {
		changes = append(changes, etcd.Change{Name: balancer.Name(name)})
	}
	e := newEdit(c, changes, nil)
	if err := e.read(); err != nil {
		return fmt.Errorf("nothing was removed: %w", err)
	}
	for _, s := range e.plan.Steps {
		if s.Stored != nil {
			continue
		}
		holds, err := e.writer.Holds(c, s.Name) // what is left of it may be its addresses
		if err == nil && !holds {
			err = absent("service", string(s.Name), " in etcd", fleetNames(c, nil))
		}
		if err != nil {
			return fmt.Errorf("nothing was removed: %w", err)
		}
	}
	if c.flags.Bool("dry-run") {
		return e.report(true)
	}
	err := e.write()
	return errors.Join(err, e.report(false))
}
