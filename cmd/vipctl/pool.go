package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"vipd/balancer/decode"
	"vipd/cmd/internal/find"
	"vipd/cmd/internal/table"
	"vipd/store/etcd"
)

func poolVerb() *verb {
	return &verb{
		name: "pool", args: "set NAME CIDR... | get [NAME] | delete NAME", brief: "address pools in etcd, for vips = [\"auto\"]",
		about: "A pool is networks whose addresses services are given where their vips say \"auto:NAME\"; \"auto\" is the pool " +
			"named default. \"pool set\" makes a pool or gives it other networks, \"pool get\" lists pools, \"pool delete\" removes " +
			"one. Addresses that services hold can't be taken away from them: the error names them.\n\n" +
			"HELD counts the addresses that services have, FREE those that can still be given: addresses that a service names " +
			"in its own vips are not.",
		example: "vipctl pool set default 10.96.0.0/24 fd00:96::/112",
		formats: []string{formTable, formJSON, formName}, fleet: true,
		least: 1, most: -1,
		complete: completePool, run: runPool,
	}
}

func completePool(c *call, before []string) []string {
	switch {
	case len(before) == 0:
		return []string{"set", "get", "delete"}
	case len(before) == 1:
		return c.poolNames()
	}
	return nil
}

func (c *call) poolNames() (names []string) {
	w, err := c.fleet()
	if err != nil {
		return nil
	}
	pools, err := w.Pools(c)
	if err != nil {
		return nil
	}
	for _, p := range pools {
		names = append(names, p.Name)
	}
	return names
}

func runPool(c *call) error {
	action, rest := c.args[0], c.args[1:]
	switch {
	case action == "set" && len(rest) >= 2:
		return c.setPool(rest[0], rest[1:])
	case action == "get" && len(rest) <= 1:
		return c.getPools(strings.Join(rest, ""))
	case action == "delete" && len(rest) == 1:
		return c.deletePool(rest[0])
	}
	return wrongUse("it goes: vipctl pool %s; for example: %s", c.verb.args, c.verb.example)
}

func (c *call) setPool(name string, networks []string) error {
	var cidrs []netip.Prefix
	for _, text := range networks {
		cidr, err := decode.ParsePrefix(text)
		if err != nil {
			return wrongUse("%v", err)
		}
		cidrs = append(cidrs, cidr)
	}
	w, err := c.fleet()
	if err != nil {
		return err
	}
	r, err := w.SetPool(c, name, cidrs)
	if err != nil {
		return err
	}
	return c.reportPool(name, "set", r)
}

func (c *call) deletePool(name string) error {
	w, err := c.fleet()
	if err != nil {
		return err
	}
	r, err := w.SetPool(c, name, nil)
	switch {
	case err != nil:
		return err
	case !r.Changed:
		return fmt.Errorf("there is no pool %q in etcd%s", name, find.Meant(name, c.poolNames()))
	}
	return c.reportPool(name, "removed", r)
}

func (c *call) reportPool(name, what string, r etcd.Result) error {
	if !r.Changed {
		what = "unchanged"
	}
	if c.format == formJSON {
		return c.printJSON(map[string]any{"pool": name, "what": what, "revision": r.Revision})
	}
	return c.print(fmt.Sprintf("pool %s: %s\n", name, what))
}

// poolJSON is a pool in JSON.
type poolJSON struct {
	Name     string         `json:"name"`
	CIDRs    []netip.Prefix `json:"cidrs"`
	Size     uint64         `json:"size"`
	Held     uint64         `json:"held"`
	Free     uint64         `json:"free"`
	Revision int64          `json:"revision"`
	Problem  string         `json:"problem,omitempty"`
}

// getPools lists all pools, or the one of a name.
func (c *call) getPools(name string) error {
	w, err := c.fleet()
	if err != nil {
		return err
	}
	all, err := w.Pools(c)
	if err != nil {
		return fmt.Errorf("reading the pools: %w", err)
	}
	some := []poolJSON{}
	var names []string
	for _, p := range all {
		if names = append(names, p.Name); name == "" || p.Name == name {
			some = append(some, poolJSON{p.Name, list(p.CIDRs), p.Size, p.Held, p.Free, p.Revision, p.Problem})
		}
	}
	if name != "" && len(some) == 0 {
		return fmt.Errorf("there is no pool %q in etcd%s", name, find.Meant(name, names))
	}
	switch c.format {
	case formJSON:
		return c.printJSON(some)
	case formName:
		var b strings.Builder
		for _, p := range some {
			fmt.Fprintln(&b, p.Name)
		}
		return c.print(b.String())
	}
	return c.printTable(poolsTable(c, some), "there are no pools")
}

func poolsTable(c *call, pools []poolJSON) *table.Table {
	t := table.New(table.Column{Title: "NAME"}, table.Column{Title: "CIDRS"}, table.Column{Title: "SIZE", Right: true},
		table.Column{Title: "HELD", Right: true}, table.Column{Title: "FREE", Right: true}, table.Column{Title: "PROBLEM", Style: problemStyle})
	for _, p := range pools {
		var cidrs []string
		for _, cidr := range p.CIDRs {
			cidrs = append(cidrs, cidr.String())
		}
		shown := few(cidrs, 2)
		if c.format == formWide {
			shown = strings.Join(cidrs, ",")
		}
		number := func(n uint64) string { return strconv.FormatUint(n, 10) }
		t.Row(p.Name, shown, number(p.Size), number(p.Held), number(p.Free), p.Problem)
	}
	return t
}
