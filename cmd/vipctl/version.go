package main

import (
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/version"
)

func versionVerb() *cli.Verb {
	return &cli.Verb{
		Name: "version", Brief: "show the version, commit, Go version and platform of this program",
		About:   "Prints the build of this program. The daemon's own version is in \"vipctl status\".",
		Example: "vipctl version",
		Formats: []string{cli.FormTable, cli.FormJSON},
		Run: func(c *cli.Call) error {
			info := version.Current()
			return c.Show(info, func() string { return "vipctl " + info.String() + "\n" })
		},
	}
}
