package main

import (
	"fmt"

	"vipd/balancer/decode"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/convert"
	"vipd/cmd/internal/wording"
)

func convertVerb() *cli.Verb {
	return &cli.Verb{
		Name: "convert", Args: "FILE", Brief: "convert the configuration file of another load balancer",
		About: `Reads FILE (- is standard input), and prints the equivalent configuration of
vipd. FILE is a configuration of keepalived, HAProxy, gobetween, ldirectord or
nginx (its stream block), the output of "ipvsadm -Sn", or Services and
EndpointSlices of Kubernetes in YAML or JSON. The format is detected unless
--from is given.

Each setting has a comment with the line number in FILE. Lines without an
exact equivalent are listed at the end with the nearest setting: read them
before you use the output. If a service would behave differently, it is
commented out with the reasons above it, and the exit code is 3. The output
passes "vipctl check".

A listener on every address ("*:80") does not name a VIP: use --vip for each
address family that you need. Included files are not read; convert them one by
one. No daemon is needed.`,
		Example: "vipctl convert --from haproxy haproxy.cfg --vip 10.96.0.10 > vipd.toml",
		Values:  map[string]cli.Completer{"from": cli.OneOf(convert.Formats()...)},
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "from", Usage: "read FILE in this `FORMAT` instead of detecting it: " + wording.List(convert.Formats(), "or")},
			&cli.StringSliceFlag{Name: "vip", Usage: "use `ADDRESS` as the VIP for listeners on every address (\"*:80\"); may be repeated"},
		},
		MinArgs: 1, MaxArgs: 1,
		Run: runConvert,
	}
}

func runConvert(c *cli.Call) error {
	format := c.Flags.String("from")
	if format != "" {
		if _, err := cli.Choice("--from", format, convert.Formats()); err != nil {
			return err
		}
	}
	var o convert.Options
	for _, text := range c.Flags.StringSlice("vip") {
		addr, err := decode.ParseAddr(text)
		if err != nil {
			return cli.WrongUse("--vip: %v", err)
		}
		o.VIPs = append(o.VIPs, addr)
	}
	file, text, err := readInput(c, c.Args[0])
	if err != nil {
		return err
	}
	if format == "" {
		if format = convert.Detect(text); format == "" {
			return fmt.Errorf("the format of %s is not recognised: set --from to %s", file, wording.List(convert.Formats(), "or"))
		}
	}
	result, err := convert.Convert(format, file, text, o)
	if err != nil {
		return err
	}
	if err := c.Print(result.TOML); err != nil {
		return err
	}
	if result.Services+result.Disabled+result.Groups+result.DisabledGroups == 0 {
		return noServices(file, format, result)
	}
	if result.Groups > 0 {
		c.Hint("%s: vipd owner (systemctl enable --now vipd vipd-owner) replaces keepalived; docs/migration.md describes in which order to convert hosts", wording.Count(result.Groups, "VRRP group"))
	}
	if len(result.Notes) > 0 {
		c.Hint("%s; %s without an exact equivalent, listed at the end", wording.Count(result.Services, "service"), wording.Count(len(result.Notes), "line"))
	}
	if result.DisabledGroups > 0 {
		c.Hint("%s commented out, with the reasons above each", wording.Count(result.DisabledGroups, "VRRP group"))
	}
	if result.Disabled > 0 {
		c.Hint("%s commented out, with the reasons above each: they would behave differently", wording.Count(result.Disabled, "service"))
	}
	if result.Disabled+result.DisabledGroups > 0 {
		return &cli.ExitError{Code: cli.ExitDifferences}
	}
	return nil
}

// noServices returns the error for a file without services. If the conversion has notes, the first
// note is the likely cause.
func noServices(file, format string, result *convert.Result) error {
	if result.Empty != "" {
		return fmt.Errorf("%s has no service that vipd could serve: %s", file, result.Empty)
	}
	first := ""
	if len(result.Notes) > 0 {
		first = fmt.Sprintf(" (line %d: %s)", result.Notes[0].Line, result.Notes[0].Nearest)
	}
	return fmt.Errorf("%s has no service that vipd could serve%s; is it a configuration of %s? --from can be %s", file, first, format, wording.List(convert.Formats(), "or"))
}
