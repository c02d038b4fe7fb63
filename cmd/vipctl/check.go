package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/config"
)

func checkVerb() *verb {
	return &verb{
		name: "check", args: "FILE...", brief: "validate files before a daemon reads them",
		about: "Reads each FILE as the daemon would, and prints every problem, a line each, with file, line and field. FILE is " +
			"a daemon's config (with the services in it and where its [store].path leads), a services file, or a folder of " +
			"those; [defaults] hold for the files that they come with.\n\n" +
			"It also reports what the mode can't honour: that of --mode, or of the file; with auto only what is wrong in any " +
			"mode. Files, programs and users of health checks that this host lacks are warnings. The exit code is 1 if any " +
			"problem is more than a warning. No daemon is needed.",
		example: "vipctl check /etc/vipd/vipd.toml --mode userspace",
		flags:   []cli.Flag{modeFlag("what this `MODE` can't honour is a problem too: " + choices(config.ModeName("").Values()))},
		formats: []string{formTable, formJSON},
		least:   1, most: -1,
		run: runCheck,
	}
}

func runCheck(c *call) error {
	mode, err := c.mode()
	if err != nil {
		return err
	}
	all := []balancer.Problem{}
	var b strings.Builder
	for _, file := range c.args {
		d, err := readDefinitions(file)
		if err != nil {
			return err
		}
		d.checkFor(mode)
		all = append(all, d.problems...)
		for _, p := range d.problems {
			fmt.Fprintln(&b, c.paint(problemLine(&p), severityStyle(p.Severity)))
		}
		if len(d.problems) == 0 {
			fmt.Fprintf(&b, "%s: %s, no problems\n", file, count(d.services.Len(), "service"))
		}
	}
	if c.format == formJSON {
		err = c.printJSON(all)
	} else {
		err = c.print(b.String())
	}
	if err == nil && grave(all) {
		err = errReported
	}
	return err
}

// checkFor adds what only compiling finds: for mode, or where that is "" for the one that the file wants. And it adds
// what health checks would lack on this host.
func (d *definitions) checkFor(mode config.ModeName) {
	if mode == "" {
		mode = d.config.Mode
	}
	d.compile("", capabilities(mode, d.config))
	for i := range d.problems {
		if p := &d.problems[i]; strings.HasSuffix(p.Text, balancer.HeldAdvice) {
			p.Text += " (a running vipd leaves it with the service that has it)" // which a file does not tell
		}
	}
	d.checkHost()
}
