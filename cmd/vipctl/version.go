package main

import "vipd/cmd/internal/version"

func versionVerb() *verb {
	return &verb{
		name: "version", brief: "version, commit, Go and platform of this program",
		about:   "Prints which build this is. The daemon's own version is in \"vipctl status\".",
		example: "vipctl version",
		formats: []string{formTable, formJSON},
		run: func(c *call) error {
			info := version.Current()
			return c.show(info, func() string { return "vipctl " + info.String() + "\n" })
		},
	}
}
