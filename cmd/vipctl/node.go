package main

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode"

	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/wording"
	"vipd/store/etcd"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
)

func nodeVerb() *cli.Verb {
	return &cli.Verb{
		Name: "node", Args: "set|standby|resume|fence [NODE]", Brief: "set a node's mode and zone, and whether it may own VIPs",
		About: `"node set" sets the mode or zone of the vipd on NODE. vipd follows at once, and
keeps the setting across restarts. The setting overrides the node's own file,
but not its --mode. Settings without a flag stay unchanged; --mode "" and
--zone "" remove them. The node need not exist yet.

"node standby" makes NODE hand its VIPs with one owner (hold = "one") to other
hosts, and accept none until "node resume", across restarts. With --wait, it
returns when other hosts own all of them, and fails if one stays. "node fence
NODE --is-off" states that a node is off: other hosts take its VIPs at once,
even if they are too few to detect this themselves. If the node is not off,
two hosts may answer.

If VRRP decides, "node standby" and "node resume" apply to this host, and NODE
is optional. If no other host takes the VIPs, the command fails unless --force
is given.

"vipctl get nodes -o wide" shows these settings and the mode in use.`,
		Example: "vipctl node set gw1 --mode iptables",
		Values:  modeValues(),
		Flags: []cli.Flag{
			modeFlag("use this `MODE`: " + wording.List(config.ModeName("").Values(), "or") + "; \"\" restores the mode in the node's file"),
			&cli.BoolFlag{Name: "is-off", Usage: "with fence: confirm that NODE is switched off"},
			&cli.BoolFlag{Name: "wait", Usage: "with standby: wait until other hosts own the node's VIPs"},
			&cli.BoolFlag{Name: "force", Usage: "with standby and VRRP: give up the VIPs even if no other host takes them over"},
			reasonFlag(), zoneFlag("set the node's zone to `ZONE`, a name that you choose; \"\" restores the zone in the node's file"),
		},
		Formats: []string{cli.FormTable, cli.FormJSON},
		Fleet:   true, MinArgs: 1, MaxArgs: 2,
		Complete: cli.InTurn(cli.OneOf("set", "standby", "resume", "fence"), nodeNames),
		Run:      runNode,
	}
}

func zoneFlag(usage string) cli.Flag { return &cli.StringFlag{Name: "zone", Usage: usage} }

// nodeSet is the result of a change to a node's configuration.
type nodeSet struct {
	Node     string            `json:"node"`
	Config   schema.NodeConfig `json:"config"`
	Revision int64             `json:"revision"`
	Changed  bool              `json:"changed"`
}

func runNode(c *cli.Call) error {
	action, name := c.Args[0], c.Argument(1)
	switch {
	case (action == "standby" || action == "resume") && c.OwnsByVRRP():
		return standbyByVRRP(c, action == "standby", name)
	case name == "" && slices.Contains([]string{"set", "standby", "resume", "fence"}, action):
		return cli.WrongUse("\"vipctl node %s\" needs NODE; \"vipctl get nodes\" lists nodes", action)
	case c.Flags.Bool("wait") && action != "standby":
		return cli.WrongUse("--wait works only with \"vipctl node standby\"")
	case c.Flags.Bool("force"):
		return cli.WrongUse("--force works only with \"vipctl node standby\", and only with VRRP")
	case action == "fence":
		return fenceNode(c, name)
	case action == "standby":
		return standBy(c, name)
	case action == "resume":
		return editNode(c, name, func(conf *schema.NodeConfig) { conf.Standby = false })
	case action == "set":
		return setModeAndZone(c, name)
	}
	return cli.WrongUse("\"vipctl node\" has the commands set, standby, resume and fence, not %q; \"vipctl get nodes\" lists nodes", action)
}

// standBy puts a node on standby and, with --wait, waits until its VIPs have left.
func standBy(c *cli.Call, name string) error {
	err := editNode(c, name, func(conf *schema.NodeConfig) { conf.Standby = true })
	if err != nil || !c.Flags.Bool("wait") {
		return err
	}
	left, err := emptied(c, name)
	if err == nil && len(left) > 0 {
		err = errors.New(stillOwns(c, name, left))
	}
	return err
}

func setModeAndZone(c *cli.Call, name string) error {
	setsMode, setsZone := c.Flags.IsSet("mode"), c.Flags.IsSet("zone")
	if !setsMode && !setsZone {
		return cli.WrongUse("set --mode or --zone; for example: %s", c.Verb.Example)
	}
	mode, err := mode(c)
	if err != nil {
		return err
	}
	zone, err := zone(c)
	if err != nil {
		return err
	}
	return editNode(c, name, func(conf *schema.NodeConfig) {
		if setsMode {
			conf.Mode = string(mode)
		}
		if setsZone {
			conf.Zone = zone
		}
	})
}

func setNode(c *cli.Call, name string, edit func(*schema.NodeConfig)) (out nodeSet, err error) {
	w, err := c.Etcd()
	if err != nil {
		return out, err
	}
	out.Node = name
	result, err := w.SetNode(c, name, func(conf schema.NodeConfig) schema.NodeConfig {
		edit(&conf)
		conf.By, conf.Reason = operator(c), c.Flags.String("reason")
		out.Config = conf
		return conf
	})
	out.Revision, out.Changed = result.Revision, result.Changed
	return out, err
}

// editNode changes a node's configuration, and prints the result.
func editNode(c *cli.Call, name string, edit func(*schema.NodeConfig)) error {
	out, err := setNode(c, name, edit)
	if err != nil {
		return err
	}
	noteUnknownNode(c, name)
	return c.Show(out, func() string {
		text := "node " + name + ": " + cmp.Or(configText(&out.Config), "nothing is set in etcd now")
		if !out.Changed {
			text += " (no change)"
		}
		return text + "\n"
	})
}

// maxZone is the maximum length of a zone's name in bytes.
const maxZone = 253

func zone(c *cli.Call) (string, error) {
	zone := c.Flags.String("zone")
	if strings.ContainsFunc(zone, unicode.IsControl) || len(zone) > maxZone {
		return "", cli.WrongUse("--zone %q is not a zone: use one line of at most %d bytes", zone, maxZone)
	}
	return zone, nil
}

// noteUnknownNode prints a note if no vipd with that name is running. It prints nothing if nodes
// can't be read.
func noteUnknownNode(c *cli.Call, name string) {
	nodes, err := cli.AskEtcd(c, (*etcd.Store).Statuses)
	nodes = slices.DeleteFunc(nodes, func(n fleet.Node) bool { return n.Live == nil })
	here := lists.Mapped(nodes, func(n fleet.Node) string { return n.Name })
	if err == nil && !slices.Contains(here, name) {
		c.Hint("no vipd with the name %q is running%s", name, lookup.Meant(name, here))
	}
}
