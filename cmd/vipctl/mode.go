package main

import (
	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

func modeFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "mode", Usage: usage}
}

// mode reads --mode: "" where it is not given.
func (c *call) mode() (config.ModeName, error) {
	text := c.flags.String("mode")
	if text == "" {
		return "", nil
	}
	name, err := choice("mode", text, config.ModeName("").Values())
	return config.ModeName(name), err
}

// capabilities are those of a mode; for auto, those of one that can do everything, so that only what is wrong in
// itself is found.
func capabilities(name config.ModeName, c config.Config) balancer.Capabilities {
	if mode, ok := modes.Find(name); ok {
		return mode.Capabilities(c)
	}
	return balancer.Capabilities{
		Mode:        "auto",
		Protocols:   []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP},
		Forwards:    []balancer.Forward{balancer.NATForward, balancer.DRForward, balancer.TunnelForward},
		KeepsSource: true, ProxyProtocol: true, Timeouts: true, MaxConnections: true, DropsClients: true, LoopbackVIPs: true,
	}
}
