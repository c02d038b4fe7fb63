package main

import (
	"fmt"
	"net/netip"
	"strconv"

	"vipd/balancer/decode"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
	"vipd/store/etcd"
	"vipd/store/etcd/definitions"
)

func poolVerb() *cli.Verb {
	return &cli.Verb{
		Name: "pool", Args: "set NAME CIDR... | get [NAME] | delete NAME", Brief: "manage address pools in etcd, for vips = [\"auto\"]",
		About: `A pool is a list of networks from which services get addresses: vips =
["auto:NAME"] selects the pool NAME, and "auto" selects the pool named
default. "pool set" creates a pool or replaces its networks, "pool get" lists
pools, and "pool delete" removes a pool. Networks whose addresses services
still hold can't be removed; the error names these services.

HELD is the number of addresses that services hold. FREE is the number of
addresses that can still be assigned, which excludes addresses that services
name in their vips.`,
		Example: "vipctl pool set default 10.96.0.0/24 fd00:96::/112",
		Formats: []string{cli.FormTable, cli.FormJSON, cli.FormName}, Fleet: true,
		MinArgs: 1, MaxArgs: cli.AnyArgs,
		Complete: cli.InTurn(cli.OneOf("set", "get", "delete"), poolNames), Run: runPool,
	}
}

func poolNames(c *cli.Call, _ []string) []string {
	all, _ := cli.AskEtcd(c, (*etcd.Store).Pools) // no completion without an answer
	return lists.Mapped(all, func(p definitions.Pool) string { return p.Name })
}

func runPool(c *cli.Call) error {
	action, rest := c.Args[0], c.Args[1:]
	switch {
	case action == "set" && len(rest) >= 2:
		return setPool(c, rest[0], rest[1:])
	case action == "get" && len(rest) <= 1:
		return get(c, pools())
	case action == "delete" && len(rest) == 1:
		return writePool(c, rest[0], nil, "removed")
	}
	return cli.WrongUse("usage: vipctl pool %s; for example: %s", c.Verb.Args, c.Verb.Example)
}

func setPool(c *cli.Call, name string, networks []string) error {
	var cidrs []netip.Prefix
	for _, text := range networks {
		cidr, err := decode.ParsePrefix(text)
		if err != nil {
			return cli.WrongUse("%v", err)
		}
		cidrs = append(cidrs, cidr)
	}
	return writePool(c, name, cidrs, "set")
}

// writePool sets a pool's networks, or removes the pool if cidrs is empty.
func writePool(c *cli.Call, name string, cidrs []netip.Prefix, what string) error {
	w, err := c.Etcd()
	if err != nil {
		return err
	}
	r, err := w.SetPool(c, name, cidrs)
	switch {
	case err != nil:
		return err
	case !r.Changed && len(cidrs) == 0:
		return absent("pool", name, " in etcd", poolNames(c, nil))
	case !r.Changed:
		what = "unchanged"
	}
	return c.Show(map[string]any{"pool": name, "what": what, "revision": r.Revision}, func() string { return fmt.Sprintf("pool %s: %s\n", name, what) })
}

// pools returns the kind of object that "get pools" and "pool get" list.
func pools() *kind[definitions.Pool] {
	return &kind[definitions.Pool]{name: "pool", where: " in etcd", read: readPools, id: func(p *definitions.Pool) string { return p.Name }, table: poolsTable}
}

func readPools(c *cli.Call, show func([]definitions.Pool) error) error {
	w, err := c.Etcd()
	if err != nil {
		return err
	}
	return showPolled(c, func() ([]definitions.Pool, error) {
		all, err := w.Pools(c)
		if err != nil {
			err = fmt.Errorf("reading the pools: %w", err)
		}
		return all, err
	}, func(all []definitions.Pool) any { return all }, show)
}

func poolsTable(p *cli.Printer, pools []definitions.Pool) *table.Table {
	t := table.New(table.Column{Title: "NAME"}, table.Column{Title: "CIDRS"}, table.Column{Title: "SIZE", Right: true},
		table.Column{Title: "HELD", Right: true}, table.Column{Title: "FREE", Right: true}, table.Column{Title: "PROBLEM", Style: problemStyle})
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	for _, o := range pools {
		t.Row(o.Name, few(p, lists.Mapped(o.CIDRs, netip.Prefix.String), 2), number(o.Size), number(o.Held), number(o.Free), o.Problem)
	}
	return t
}
