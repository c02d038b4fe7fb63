package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
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
	client, err := c.daemon.client()
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
	err = c.show(r, func() string {
		return c.problemLines(r.Problems) + fmt.Sprintf("reloaded: revision %d, %s, %s\n", r.Revision, count(r.Services, "service"), problems(len(r.Problems)))
	})
	return cmp.Or(err, reported(r.Problems))
}

// problemLines writes problems, a line each.
func (p *printer) problemLines(problems []balancer.Problem) string {
	return strings.Join(mapped(problems, func(problem balancer.Problem) string {
		return p.paint(problemLine(&problem), severityStyle(problem.Severity)) + "\n"
	}), "")
}

func problems(n int) string {
	if n == 0 {
		return "no problems"
	}
	return count(n, "problem")
}

// grave reports whether any problem is more than a warning.
func grave(problems []balancer.Problem) bool {
	return slices.ContainsFunc(problems, func(p balancer.Problem) bool { return p.Severity != balancer.SeverityWarning })
}

// reported is the error of a verb whose output has these problems.
func reported(problems []balancer.Problem) error {
	if grave(problems) {
		return errReported
	}
	return nil
}
