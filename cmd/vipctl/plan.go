package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
	"vipd/dataplane/guard"
)

func planVerb() *cli.Verb {
	return &cli.Verb{
		Name: "plan", Args: "FILE", Brief: "print the rules that a mode would create from a file",
		About: `Prints what the mode would create in the kernel for FILE, in the mode's native
syntax. FILE is compiled for this node, or for the node of --node. Nothing is
changed, and neither a daemon nor root is needed. Node ports are shown on this
host's addresses.

For a kernel mode, the rules and sets of the guard come first, for VIPs that
vipd holds and for this host's devices; sets of clients are empty. Direct
routing in nftables mode is shown for this host's routes.

Problems are printed to stderr. The exit code is 1 if there is a problem other
than a warning.`,
		Example: "vipctl plan /etc/vipd/vipd.toml --node gw2",
		Values:  modeValues(),
		Flags: []cli.Flag{
			modeFlag("plan for this `MODE`; default: FILE's mode; auto means the mode of the running vipd, or the mode that it would probably use here"),
			&cli.StringFlag{Name: "node", Usage: "plan for this `NODE`, whose zone matters for locality; default: the node in FILE, or this host"},
		},
		MinArgs: 1, MaxArgs: 1,
		Run: runPlan,
	}
}

func runPlan(c *cli.Call) error {
	name, err := mode(c)
	if err != nil {
		return err
	}
	d, err := readDefinitions(c.Args[0])
	if err != nil {
		return err
	}
	mode, note := planned(cmp.Or(name, d.runningMode(c), d.config.Mode))
	fmt.Fprint(c.Stderr, note)
	ctx, cancel := context.WithTimeout(c.Context, lookupTime)
	defer cancel()
	if unrun := d.lookUp(ctx); unrun != nil {
		c.Hint("plan runs no programs, so endpoints that discover.exec would find are missing: %s", wording.Some(unrun, 8))
	}
	frontends := d.compile(c.Flags.String("node"), mode.Capabilities())
	for _, p := range d.problems {
		fmt.Fprintln(c.Stderr, table.Line(problemLine(&p)))
	}
	text, err := render(mode, d.config, frontends)
	if err != nil {
		return fmt.Errorf("planning %s: %w", c.Args[0], err)
	}
	if len(frontends) == 0 {
		fmt.Fprintf(c.Stderr, "%s has no frontends\n", c.Args[0])
	}
	return cmp.Or(c.Print(text), reported(d.problems))
}

// runningMode returns the mode that this host's vipd uses, if its configuration names the same mode
// as the definitions. The mode in use can differ from the configured mode, because auto selects a
// mode, and because vipd falls back to another mode if the configured mode is unusable. It returns
// "" if no vipd answers.
func (d *localDefinitions) runningMode(c *cli.Call) config.ModeName {
	status, err := cli.AskDaemon(c, (*api.Client).Status)
	if err != nil || status.Mode.Wanted != string(d.config.Mode) {
		return ""
	}
	return config.ModeName(status.Mode.InUse)
}

// planned returns the mode called name. For auto, it returns the mode that vipd would probably
// choose here, and a note.
func planned(name config.ModeName) (mode modes.Mode, note string) {
	if mode, ok := modes.Find(name); ok {
		return mode, ""
	}
	mode, why := doctor.Likely(os.ReadFile)
	if why != "" {
		why = " (" + why + ")"
	}
	return mode, fmt.Sprintf("note: with mode auto, vipd probably uses %s mode here%s, so this output is for that mode; --mode selects another\n", mode.Name, why)
}

// render returns the rules that vipd would install. For kernel modes, it includes the guard's
// rules.
func render(mode modes.Mode, conf config.Config, frontends []*balancer.Frontend) (string, error) {
	text := mode.Render(conf, frontends)
	if !mode.Needs.Forward {
		return text, nil
	}
	devices, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("listing this host's devices: %w", err)
	}
	var interfaces []guard.Interface
	for _, d := range devices {
		if d.Flags&net.FlagLoopback == 0 {
			mtu := 0
			if d.Flags&net.FlagUp != 0 {
				mtu = d.MTU
			}
			interfaces = append(interfaces, guard.Interface{Name: d.Name, Index: d.Index, MTU: mtu})
		}
	}
	o := modes.HostOptions(conf)
	o.Mode = mode.Needs
	text = guard.Render(o.Guard(), frontends, interfaces) + text
	if mode.RenderDirect == nil {
		return text, nil
	}
	direct, err := mode.RenderDirect(frontends)
	return text + direct, err
}

func modeFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "mode", Usage: usage}
}

// modeValues returns modeFlag's completer.
func modeValues() map[string]cli.Completer {
	return map[string]cli.Completer{"mode": cli.OneOf(config.ModeName("").Values()...)}
}

// mode returns the value of --mode, or "".
func mode(c *cli.Call) (config.ModeName, error) {
	text := c.Flags.String("mode")
	if text == "" {
		return "", nil
	}
	name, err := cli.Choice("mode", text, config.ModeName("").Values())
	return config.ModeName(name), err
}

// capabilities returns a mode's capabilities. For auto, it returns all capabilities, so a check
// finds only mistakes in the definitions.
func capabilities(name config.ModeName) balancer.Capabilities {
	if mode, ok := modes.Find(name); ok {
		return mode.Capabilities()
	}
	return balancer.Capabilities{
		Mode:      "auto",
		Protocols: []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP},
		MaxPorts:  balancer.AllPorts.Len(), RangeAffinity: true, MaxMovedPorts: balancer.AllPorts.Len(),
		AffinityScopes: []balancer.AffinityScope{balancer.ServiceScope, balancer.VIPScope}, AffinityPrefix: true,
		Forwards:    []balancer.Forward{balancer.NATForward, balancer.DRForward, balancer.TunnelForward},
		KeepsSource: true, ClientSource: true, ProxyProtocol: true, AcceptsProxy: true, Timeouts: true, MaxConnections: true, DropsClients: true, LoopbackVIPs: true,
	}
}
