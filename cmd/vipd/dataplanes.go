package main

import (
	"context"
	"log/slog"

	"vipd/cmd/internal/config"
	"vipd/cmd/vipd/daemon"
	"vipd/dataplane"
	"vipd/dataplane/userspace"
)

// modes lists the dataplanes of this program, the best first: what mode = "auto" takes the first working one of.
func modes() []daemon.Mode {
	return []daemon.Mode{
		{Name: config.UserspaceMode, New: newUserspace},
	}
}

func newUserspace(_ context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
	return userspace.New(userspace.Options{Log: log, Intercept: userspace.Interception(c.Userspace.Intercept),
		Backend: userspace.TablesBackend(c.IPTables.Backend)})
}
