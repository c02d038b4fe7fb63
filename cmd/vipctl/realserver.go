package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/netlock"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
	"vipd/dataplane/host"
)

func realServerVerb() *cli.Verb {
	return &cli.Verb{
		Name: "real-server", Args: "VIP...", Brief: "hold VIPs for direct routing on an endpoint's host, without vipd",
		About: `Prepares this host as an endpoint of services with forward = "dr": it receives
packets for the VIPs from a gateway, and replies to the clients itself. The
command sets the sysctls that stop the host from answering ARP requests for
the VIPs, and then adds the VIPs to lo. It prints each change, and can be
repeated. The VIPs stay until --undo, "vipctl cleanup" or a reboot. Without
VIPs, --undo removes all of them. After the last VIP, it restores the sysctls.

It needs root, but no daemon. If vipd runs on this host, set real_server in
[direct] of its config instead. A VIP on another device is refused, because
this host is then a gateway for the VIP.`,
		Example: "sudo vipctl real-server 10.96.0.10",
		Flags:   []cli.Flag{&cli.BoolFlag{Name: "undo", Usage: "remove the VIPs that this command added"}},
		MaxArgs: cli.AnyArgs,
		Run:     runRealServer,
	}
}

func runRealServer(c *cli.Call) error {
	undo := c.Flags.Bool("undo")
	vips, err := directVIPs(c, undo)
	if err != nil {
		return err
	}
	conf, err := ownConfig(c)
	if err != nil {
		return err
	}
	if !c.Root {
		return errors.New("only root may change addresses and sysctls: sudo vipctl real-server")
	}
	if err := folder.CheckFiles(conf.RunDir); err != nil {
		return fmt.Errorf("run_dir: %w", err)
	}
	lock, err := netlock.Acquire(netlock.Holder{})
	if held, ok := errors.AsType[*netlock.HeldError](err); ok {
		if undo {
			return fmt.Errorf("%w: stop it first, because it might need the sysctls that --undo restores", held)
		}
		return fmt.Errorf("%w: set real_server = true in [direct] of its config instead", held)
	}
	defer func() { _ = lock.Close() }() // nothing was written, so closing loses no data
	if undo {
		done, err := host.ReleaseDirect(modes.HostOptions(conf), vips, false)
		return errors.Join(printSteps(c, done), err)
	}
	done, problems, err := host.HoldDirect(modes.HostOptions(conf), vips)
	if err := errors.Join(printSteps(c, done), err); err != nil {
		return err
	}
	return reportDirect(c, problems)
}

// directVIPs parses the arguments as VIPs.
func directVIPs(c *cli.Call, undo bool) (vips []netip.Addr, err error) {
	if len(c.Args) == 0 && !undo {
		return nil, cli.WrongUse("\"vipctl real-server\" needs %s; for example: %s", c.Verb.Args, c.Verb.Example)
	}
	for _, text := range c.Args {
		a, err := decode.ParseAddr(text)
		if err != nil {
			return nil, cli.WrongUse("%v", err)
		}
		if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
			return nil, cli.WrongUse("%s can't be a VIP for direct routing: name the VIP of a service with forward = \"dr\"", a)
		}
		vips = append(vips, a)
	}
	return vips, nil
}

func printSteps(c *cli.Call, done []string) error {
	if len(done) == 0 {
		return c.Print("nothing to change\n")
	}
	var b strings.Builder
	for _, step := range grouped(done) {
		fmt.Fprintln(&b, table.Line(step))
	}
	return c.Print(b.String())
}

// reportDirect prints the problems. It returns an error if a VIP is not held.
func reportDirect(c *cli.Call, problems []balancer.Problem) error {
	failed := 0
	for _, p := range problems {
		c.Note("%s", p.Text)
		if p.Severity == balancer.SeverityError {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("this host does not hold %s", wording.Count(failed, "VIP"))
	}
	return nil
}
