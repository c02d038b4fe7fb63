package main

import (
	"cmp"
	"fmt"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/wording"
	"vipd/store/tomlfile"
)

func checkVerb() *cli.Verb {
	return &cli.Verb{
		Name: "check", Args: "[FILE...]", Brief: "validate files before a daemon reads them",
		About: `Reads each FILE as the daemon would, and prints each problem on a line with
its file, line and field. FILE is a daemon's config, a services file, a folder
of services files, or - for standard input. The default is the daemon's config
(--config). A daemon's config is checked together with its services and the
files of its [store].path. Its [defaults] apply to all of these services, but
not to other FILEs.

Settings that the mode can't honour are also reported. The mode is --mode. If
it is not given, it is the mode in use, if a vipd runs that is configured with
the same mode as the file, and otherwise the mode in the file. With auto, all
settings are accepted that any mode can honour.

Some findings depend on the host, and are only warnings because the file may
be for another host: missing files, programs, users or interfaces, VIPs that
are an endpoint's address, and ports on which a program already listens. The
exit code is 1 if there is a problem other than a warning. No daemon is
needed.`,
		Example: "vipctl check /etc/vipd/vipd.toml --mode userspace",
		Values:  modeValues(),
		Flags:   []cli.Flag{modeFlag("also report settings that this `MODE` can't honour: " + wording.List(config.ModeName("").Values(), "or"))},
		Formats: []string{cli.FormTable, cli.FormJSON},
		MaxArgs: cli.AnyArgs,
		Run:     runCheck,
	}
}

func runCheck(c *cli.Call) error {
	mode, err := mode(c)
	if err != nil {
		return err
	}
	all := []balancer.Problem{}
	var b strings.Builder
	files := c.Args
	if len(files) == 0 {
		files = []string{c.Flags.String("config")}
	}
	for _, file := range files {
		d, err := readChecked(c, file)
		if err != nil {
			return err
		}
		d.checkFor(cmp.Or(mode, d.runningMode(c)))
		all = append(all, d.problems...)
		b.WriteString(problemLines(c.Printer, d.problems))
		if len(d.problems) == 0 {
			fmt.Fprintf(&b, "%s: %s, no problems\n", d.place, wording.Count(d.services.Len(), "service"))
		}
	}
	return cmp.Or(c.Show(all, b.String), reported(all))
}

// readChecked is like readDefinitions but also accepts standard input.
func readChecked(c *cli.Call, place string) (*localDefinitions, error) {
	if place != stdinName {
		return readDefinitions(place)
	}
	place, text, err := readInput(c, place)
	if err != nil {
		return nil, err
	}
	return definitionsOf(place, tomlfile.LoadText(place, text)), nil
}

// checkFor compiles the definitions for a mode, or for the configured mode if mode is "". It adds
// the problems that it finds, and warnings about settings that this host does not support.
func (d *localDefinitions) checkFor(mode config.ModeName) {
	mode = cmp.Or(mode, d.config.Mode)
	frontends := d.compile("", capabilities(mode))
	for i := range d.problems {
		if p := &d.problems[i]; p.Kind == balancer.Held {
			p.Text += " (a running vipd lets the service that holds it keep it)" // the files don't show which service holds it
		}
	}
	d.checkHost(frontends)
	d.sortProblems()
}
