package main

import (
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/version"
)

func versionVerb() *cli.Verb {
	return &cli.Verb{
		Name: "version", Brief: "show the version, commit, Go version and platform of this program",
		About:   `Prints the version of vipctl. "vipctl status" shows the daemon's version.`,
		Example: "vipctl version",
		Formats: []string{cli.FormTable, cli.FormJSON},
		Run: func(c *cli.Call) error {
			info := version.Current()
			return c.Show(info, func() string { return "vipctl " + info.String() + "\n" })
		},
	}
}
