package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

func reloadVerb() *verb {
	return &verb{
		name: "reload", brief: "make the daemon read its files now, and say what came of it",
		about: "Makes the daemon read its configuration and services again, and answers when that is done. Problems are " +
			"printed, a line each; what they are about stays in its last good state, and the exit code is 1 if any of " +
			"them is more than a warning. A file that a program is still writing is read when that has closed it. A main file " +
			"that says nothing any more is a problem, and what it said before goes on, unless --allow-empty says that it is meant.",
		example: "vipctl reload",
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "allow-empty", Usage: "serve nothing where the main file says nothing"},
		},
		formats: []string{formTable, formJSON},
		run:     runReload,
	}
}

func runReload(c *call) error {
	client, err := c.daemon()
	if err != nil {
		return err
	}
	reload := client.Reload
	if c.flags.Bool("allow-empty") {
		reload = client.ReloadEmpty
	}
	r, err := reload(c, c.operator())
	if err != nil {
		return err
	}
	if err := c.showReload(&r); err != nil {
		return err
	}
	if grave(r.Problems) {
		return errReported
	}
	return nil
}

func (c *call) showReload(r *api.Reload) error {
	if c.format == formJSON {
		return c.printJSON(r)
	}
	var b strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintln(&b, c.paint(problemLine(&p), severityStyle(p.Severity)))
	}
	fmt.Fprintf(&b, "reloaded: revision %d, %s, %s\n", r.Revision, count(r.Services, "service"), problems(len(r.Problems)))
	return c.print(b.String())
}

func problems(n int) string {
	if n == 0 {
		return "no problems"
	}
	return count(n, "problem")
}

// grave reports whether any problem is more than a warning.
func grave(problems []balancer.Problem) bool {
	for _, p := range problems {
		if p.Severity != balancer.SeverityWarning {
			return true
		}
	}
	return false
}
