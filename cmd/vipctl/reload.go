package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/wording"
)

func reloadVerb() *cli.Verb {
	return &cli.Verb{
		Name: "reload", Brief: "make the daemon read its files now, and print the result",
		About: `Makes the daemon read its configuration and services again, and returns when
they are read. It prints each problem, and each service of a file that has
changed since the last reload: + added, ~ changed, - removed, = kept in its
last good state because of an error. If a program is still writing a file, the
file is read after the program has closed it. The exit code is 1 if there is a
problem other than a warning.

A mistake outside a service, such as a misspelled heading or a file that can't
be parsed, can hide services. While there is such a mistake, services that are
no longer defined are kept; the last line names them, and --prune removes
them, except services of a file that can't be read. If the main file is suddenly empty, its services are kept unless
--allow-empty is given.

With --confirm and -f, the daemon serves NEW instead of its configuration
file, which stays unchanged until "vipctl confirm" replaces it by NEW. After
"vipctl abort", or if nobody confirms in time, the daemon returns to the file,
even after a restart. If NEW has errors, nothing changes.`,
		Example: "vipctl reload",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "allow-empty", Usage: "accept an empty main file, and serve nothing from it"},
			&cli.BoolFlag{Name: "prune", Usage: "remove and list services that are no longer defined, even if files have errors"},
			&cli.DurationFlag{Name: "confirm", Usage: "revert to the configuration file after this `TIME`, such as 2m, unless the change is confirmed"},
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "with --confirm: serve the file `NEW` instead of the configuration file; - reads standard input"},
		},
		Formats: []string{cli.FormTable, cli.FormJSON},
		Run:     cli.Traced(runReload),
	}
}

func runReload(c *cli.Call) error {
	if c.Flags.IsSet("confirm") || c.Flags.IsSet("file") {
		return try(c)
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	var flags []api.ReloadFlag
	if c.Flags.Bool("allow-empty") {
		flags = append(flags, api.ReloadAllowEmpty)
	}
	if c.Flags.Bool("prune") {
		flags = append(flags, api.ReloadPrune)
	}
	r, err := client.Reload(c, operator(c), flags...)
	if err != nil {
		return err
	}
	return showReload(c, &r)
}

// showReload prints the result of a reload.
func showReload(c *cli.Call, r *api.Reload) error {
	err := c.Show(r, func() string {
		return problemLines(c.Printer, r.Problems) + changeLines(&r.ReloadChanges) + fmt.Sprintf("reloaded: revision %d, %s, %s%s%s%s\n",
			r.Revision, wording.Count(r.Services, "service"), problems(len(r.Problems)), pruned(c, &r.ReloadChanges), late(r), pendingText(c, r.Pending))
	})
	return cmp.Or(err, reported(r.Problems))
}

// changeLines returns a line for each service that a reload changes, or keeps despite an error.
func changeLines(c *api.ReloadChanges) string {
	var lines strings.Builder
	for _, kind := range []struct {
		sign, why string
		names     []balancer.Name
	}{{"+", "", c.Added}, {"~", "", c.Changed}, {"-", "", c.Removed}, {"=", " kept because of an error", c.Kept}} {
		for _, name := range kind.names {
			fmt.Fprintf(&lines, "%s %s%s\n", kind.sign, name, kind.why)
		}
	}
	return lines.String()
}

// pruned returns a note about services that a reload with --prune would remove, or that this reload
// could not remove.
func pruned(c *cli.Call, r *api.ReloadChanges) string {
	switch {
	case len(r.Vanished) > 0:
		return "; vipctl reload --prune would remove " + nameList(r.Vanished)
	case !c.Flags.Bool("prune") || len(r.Kept) == 0:
		return ""
	case len(r.Removed) == 0:
		return "; nothing was pruned: the file of " + nameList(r.Kept) + " can't be read, or has an error in the definition: fix the file"
	}
	return "; not pruned: the file of " + nameList(r.Kept) + " can't be read, or has an error in the definition: fix the file"
}

func nameList(names []balancer.Name) string {
	return strings.Join(lists.Mapped(names, func(n balancer.Name) string { return string(n) }), ", ")
}

// late returns a note if vipd has not applied the new state yet. Otherwise it returns "".
func late(r *api.Reload) string {
	if !r.Unapplied {
		return ""
	}
	return "; it is not applied yet: vipctl status shows the progress"
}

func problemLines(p *cli.Printer, problems []balancer.Problem) string {
	return strings.Join(lists.Mapped(problems, func(problem balancer.Problem) string {
		return p.Paint(problemLine(&problem), severityStyle(problem.Severity)) + "\n"
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

// reported returns the error with which a verb must fail if its output contains these problems, or
// nil.
func reported(problems []balancer.Problem) error {
	if grave(problems) {
		return cli.ErrReported
	}
	return nil
}
