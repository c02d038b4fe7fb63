package main

import (
	"errors"
	"fmt"
	"slices"

	"vipd/balancer"
	"vipd/cmd/internal/find"
)

func deleteVerb() *verb {
	return &verb{
		name: "delete", args: "service NAME...", brief: "remove services from etcd",
		about: "Removes services from etcd, with their overrides and with those of their endpoints that no registrar keeps " +
			"there. Their connections may live on for drain_timeout. If one of the names is not there, nothing is removed.\n\n" +
			"The history stays: \"vipctl rollback SERVICE N\" brings a service back.",
		example: "vipctl delete service web",
		formats: []string{formTable, formJSON}, fleet: true,
		least: 2, most: -1,
		complete: func(c *call, before []string) []string {
			if len(before) == 0 {
				return []string{"service"}
			}
			return c.fleetNames()
		},
		run: runDelete,
	}
}

func runDelete(c *call) error {
	if c.args[0] != "service" && c.args[0] != "services" {
		return wrongUse("delete removes services, not %q; for example: %s", c.args[0], c.verb.example)
	}
	w, err := c.fleet()
	if err != nil {
		return err
	}
	e := &edit{call: c, writer: w}
	names := slices.Clone(c.args[1:])
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		s, err := w.Service(c, balancer.Name(name))
		if err == nil && s == nil {
			err = c.noService(name)
		}
		if err != nil {
			return fmt.Errorf("nothing was removed: %w", err)
		}
		e.remove(s)
	}
	err = e.write()
	return errors.Join(err, e.report(false))
}

// fleetNames asks etcd for the names of all services; none if it does not answer.
func (c *call) fleetNames() []string {
	w, err := c.fleet()
	if err != nil {
		return nil
	}
	names, err := w.Names(c)
	if err != nil {
		return nil
	}
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}

// noService says that etcd has no such service, and what is near.
func (c *call) noService(name string) error {
	return fmt.Errorf("there is no service %q in etcd%s", name, find.Meant(name, c.fleetNames()))
}
