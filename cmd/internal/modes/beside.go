package modes

import (
	"context"
	"log/slog"

	"vipd/cmd/internal/config"
	"vipd/dataplane"
)

// Beside returns the modes of a vipd that must leave the kernel to another one: userspace mode, intercepting by bind. The
// others fail with why, and none removes what is left of another: all of that belongs to the other vipd.
func Beside(all []Mode, why error) []Mode {
	out := make([]Mode, 0, len(all))
	for _, m := range all {
		trial := m.New
		m.New = func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			if m.Name != config.UserspaceMode {
				return nil, why
			}
			c.Userspace.Intercept = config.BindIntercept
			return trial(ctx, c, log)
		}
		m.Cleanup = func(context.Context, config.Config, bool) ([]string, error) { return nil, nil }
		out = append(out, m)
	}
	return out
}
