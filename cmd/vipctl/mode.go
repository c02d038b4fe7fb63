package main

import (
	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane/userspace"
)

func modeFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "mode", Usage: usage}
}

// modes are those that --mode takes.
func modes() []string { return config.ModeName("").Values() }

// mode reads --mode: "" where it is not given.
func (c *call) mode() (config.ModeName, error) {
	text := c.flags.String("mode")
	if text == "" {
		return "", nil
	}
	name, err := choice("mode", text, modes())
	if err != nil {
		return "", err
	}
	if mode := config.ModeName(name); mode == config.AutoMode || built(mode) {
		return mode, nil
	}
	return "", wrongUse("this version does not have %s mode yet; it has userspace", text)
}

// built reports whether this version has the mode.
func built(mode config.ModeName) bool { return mode == config.UserspaceMode }

// capabilities are those of a mode; for auto, those of one that can do everything, so that only what is wrong in
// itself is found.
func capabilities(mode config.ModeName) balancer.Capabilities {
	if mode == config.UserspaceMode {
		return userspace.Capabilities()
	}
	return balancer.Capabilities{
		Mode:        "auto",
		Protocols:   []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP},
		Forwards:    []balancer.Forward{balancer.NATForward, balancer.DRForward, balancer.TunnelForward},
		KeepsSource: true, ProxyProtocol: true, Timeouts: true, MaxConnections: true, DropsClients: true, LoopbackVIPs: true,
	}
}
