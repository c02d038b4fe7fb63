package modes

import (
	"context"
	"log/slog"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/dataplane/userspace"
)

func userspaceMode() Mode {
	return Mode{
		Name: config.UserspaceMode,
		New: func(_ context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			return userspace.New(userspace.Options{
				Log: log, Intercept: userspace.Interception(c.Userspace.Intercept), Variant: userspace.Variant(c.IPTables.Backend),
			})
		},
		Capabilities: func(config.Config) balancer.Capabilities { return userspace.Capabilities() },
		Render:       func(_ config.Config, frontends []*balancer.Frontend) string { return userspace.Render(frontends) },
		Cleanup: func(ctx context.Context, _ config.Config, dry bool) ([]string, error) {
			return userspace.Cleanup(ctx, dry)
		},
	}
}
