package main

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/find"
	"vipd/store/etcd"
)

func nodeVerb() *verb {
	return &verb{
		name: "node", args: "set NODE", brief: "set mode and zone of a node of the fleet",
		about: "Sets mode or zone of the vipd on NODE, which follows at once and keeps them over restarts. They win over the " +
			"node's own file, but not over its --mode. What is not given stays; --mode \"\" and --zone \"\" remove what was set " +
			"here. The node need not exist yet.\n\n" +
			"\"vipctl get nodes -o wide\" shows what is set, and the mode in use.",
		example: "vipctl node set gw1 --mode iptables",
		flags: []cli.Flag{
			modeFlag("the `MODE` that the node is to use: " + choices(config.ModeName("").Values()) + "; \"\": what its file says"),
			reasonFlag(), zoneFlag("where the node is, a `ZONE` of your own naming; \"\": what its file says"),
		},
		formats: []string{formTable, formJSON},
		fleet:   true, least: 2, most: 2,
		complete: inTurn(oneOf("set"), nodeNames),
		run:      runNode,
	}
}

func zoneFlag(usage string) cli.Flag { return &cli.StringFlag{Name: "zone", Usage: usage} }

// nodeSet is what came of setting a node.
type nodeSet struct {
	Node     string          `json:"node"`
	Config   etcd.NodeConfig `json:"config"`
	Revision int64           `json:"revision"`
	Changed  bool            `json:"changed"`
}

func runNode(c *call) error {
	name := c.args[1]
	setsMode, setsZone := c.flags.IsSet("mode"), c.flags.IsSet("zone")
	switch {
	case c.args[0] != "set":
		return wrongUse("\"vipctl node\" knows set, not %q; \"vipctl get nodes\" lists nodes", c.args[0])
	case !setsMode && !setsZone:
		return wrongUse("say what to set: --mode or --zone; for example: %s", c.verb.example)
	}
	mode, err := c.mode()
	if err != nil {
		return err
	}
	zone := c.flags.String("zone")
	if strings.ContainsFunc(zone, unicode.IsControl) || len(zone) > longestZone {
		return wrongUse("--zone %q is not possible: it is a line of at most %d bytes", zone, longestZone)
	}
	w, err := c.fleet.writer()
	if err != nil {
		return err
	}
	out := nodeSet{Node: name}
	result, err := w.SetNode(c, name, func(conf etcd.NodeConfig) etcd.NodeConfig {
		conf.By, conf.Reason = c.operator(), c.flags.String("reason")
		if setsMode {
			conf.Mode = string(mode)
		}
		if setsZone {
			conf.Zone = zone
		}
		out.Config = conf
		return conf
	})
	if err != nil {
		return err
	}
	out.Revision, out.Changed = result.Revision, result.Changed
	c.noteUnknownNode(w, name)
	return c.show(out, func() string {
		text := "node " + name + ": " + cmp.Or(configText(&out.Config), "nothing is set in etcd any more")
		if !out.Changed {
			text += ", as before"
		}
		return text + "\n"
	})
}

// longestZone is how long the name of a zone may be, in bytes.
const longestZone = 253

// noteUnknownNode says where no vipd of that name is there. Where nodes can't be read, there is no note.
func (c *call) noteUnknownNode(w *etcd.Writer, name string) {
	nodes, err := w.Statuses(c)
	nodes = slices.DeleteFunc(nodes, func(n etcd.Node) bool { return n.Live == nil })
	here := mapped(nodes, func(n etcd.Node) string { return n.Name })
	if err == nil && !slices.Contains(here, name) {
		c.hint("no vipd with the name %q is there now%s", name, find.Meant(name, here))
	}
}
