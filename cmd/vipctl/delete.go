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
		least: 2, most: -1, kinds: true,
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
	w, err := c.etcd()
	if err != nil {
		return err
	}
	e := &edit{call: c}
	names := slices.Clone(c.args[1:])
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		s, err := w.Service(c, balancer.Name(name))
		if err == nil && s == nil {
			var holds bool
			if holds, err = w.Holds(c, balancer.Name(name)); err == nil && !holds {
				err = absent("service", name, " in etcd", fleetNames(c, nil))
			}
			s = &etcd.Stored{Name: balancer.Name(name)} // what is left of it are its addresses
		}
		if err != nil {
			return fmt.Errorf("nothing was removed: %w", err)
		}
		e.remove(s)
	}
	if c.flags.Bool("dry-run") {
		return e.report(true)
	}
	err = e.write()
	return errors.Join(err, e.report(false))
}
