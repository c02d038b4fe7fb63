package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/store/etcd/definitions"
)

func deleteVerb() *cli.Verb {
	return &cli.Verb{
		Name: "delete", Args: "service NAME...", Brief: "remove services from etcd",
		About: `Removes services from etcd with their overrides and endpoints, except
endpoints that a registrar still keeps there. Open connections can continue
for drain_timeout. If one of the services does not exist, nothing is removed.

The history is kept: "vipctl rollback SERVICE N" restores a removed service.`,
		Example: "vipctl delete service web",
		Flags:   []cli.Flag{dryRunFlag()},
		Formats: []string{cli.FormTable, cli.FormJSON}, Fleet: true,
		MinArgs: 2, MaxArgs: cli.AnyArgs, SpellOut: withKind,
		Complete: func(c *cli.Call, before []string) []string {
			if len(before) == 0 {
				return []string{"service"}
			}
			return fleetNames(c, before)
		},
		Run: cli.Traced(runDelete),
	}
}

func runDelete(c *cli.Call) error {
	if strings.TrimSuffix(c.Args[0], "s") != "service" {
		return cli.WrongUse("\"vipctl delete\" removes services, not %q; for example: %s", c.Args[0], c.Verb.Example)
	}
	if _, err := c.Etcd(); err != nil {
		return err
	}
	names := slices.Clone(c.Args[1:])
	slices.Sort(names)
	var changes []definitions.Change
	for _, name := range slices.Compact(names) {
		changes = append(changes, definitions.Change{Name: balancer.Name(name)})
	}
	e := newEdit(c, changes, nil)
	if err := e.read(); err != nil {
		return fmt.Errorf("nothing was removed: %w", err)
	}
	for _, s := range e.plan.Steps {
		if s.Stored != nil {
			continue
		}
		holds, err := e.Writer.Holds(c, s.Name) // the deleted service may still hold addresses of a pool
		if err == nil && !holds {
			err = absent("service", string(s.Name), " in etcd", fleetNames(c, nil))
		}
		if err != nil {
			return fmt.Errorf("nothing was removed: %w", err)
		}
	}
	if c.Flags.Bool("dry-run") {
		return e.report(true)
	}
	err := e.write()
	return errors.Join(err, e.report(false))
}
