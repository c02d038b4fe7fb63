package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/wording"
)

func reloadVerb() *verb {
	return &verb{
		name: "reload", brief: "make the daemon read its files now, and print the result",
		about: "Makes the daemon read its configuration and services again, and returns when that is done. It prints each " +
			"problem on a line; the last good state of what has a problem stays in use. The exit code is 1 if any problem is " +
			"more than a warning. A file that a program is still writing is read when that program has closed it. A main file " +
			"that is suddenly empty is a problem, and its services stay, unless --allow-empty is given.",
		example: "vipctl reload",
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "allow-empty", Usage: "serve nothing where the main file says nothing"},
		},
		formats: []string{formTable, formJSON},
		run:     runReload, traced: true,
	}
}

func runReload(c *call) error {
	client, err := c.client()
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
	kept := ""
	if slices.ContainsFunc(r.Problems, func(p balancer.Problem) bool { return isError(p) && p.Origin.File != "" && p.Kind == "" }) { // a text's own
		kept = "; what has an error stays as it was"
	}
	err = c.show(r, func() string {
		return c.problemLines(r.Problems) + fmt.Sprintf("reloaded: revision %d, %s, %s%s\n", r.Revision, wording.Count(r.Services, "service"), problems(len(r.Problems)), kept)
	})
	return cmp.Or(err, reported(r.Problems))
}

func (p *printer) problemLines(problems []balancer.Problem) string {
	return strings.Join(mapped(problems, func(problem balancer.Problem) string {
		return p.paint(problemLine(&problem), severityStyle(problem.Severity)) + "\n"
	}), "")
}

func problems(n int) string {
	if n == 0 {
		return "no problems"
	}
	return wording.Count(n, "problem")
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
