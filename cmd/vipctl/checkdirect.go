package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
	"vipd/dataplane/realserver"
)

// checkDirect tests the paths that direct routing uses. It returns an error if a finding is not OK.
func checkDirect(c *cli.Call) error {
	var q api.DirectRequest
	switch len(c.Args) {
	case 0:
	case 1:
		q.Service = balancer.Name(strings.TrimPrefix(c.Args[0], "service/"))
	default:
		return cli.WrongUse("--direct tests all endpoints of a service: name only the SERVICE")
	}
	paths, err := cli.AskDaemon(c, func(d *api.Client, ctx context.Context) ([]api.DirectPath, error) { return d.CheckDirect(ctx, q) })
	if err != nil {
		return err
	}
	if err := c.Show(paths, func() string { return directText(c.Printer, paths) }); err != nil {
		return err
	}
	if slices.ContainsFunc(paths, func(p api.DirectPath) bool { return slices.ContainsFunc(p.Findings, isWrong) }) {
		return cli.ErrReported
	}
	return nil
}

func isWrong(f realserver.Finding) bool { return !f.OK }

// directText formats each path's name, followed by the path's findings. Failures begin with "!".
func directText(p *cli.Printer, paths []api.DirectPath) string {
	var b strings.Builder
	for _, path := range paths {
		fmt.Fprintf(&b, "%s at %s by %s\n", path.Service, path.Frontend, path.Endpoint)
		for _, f := range path.Findings {
			mark := " "
			if isWrong(f) {
				mark = p.Paint("!", table.Bad)
			}
			fmt.Fprintf(&b, "%s %s\n", mark, table.Line(cli.OneLine(f.Text)))
		}
	}
	return b.String()
}
