package modes

import (
	"context"
	"log/slog"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	"vipd/dataplane/iptables"
)

func iptablesMode() Mode {
	return Mode{
		Name: config.IPTablesMode,
		New: func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			return iptables.New(ctx, iptables.Options{Log: log, Variant: iptables.Variant(c.IPTables.Backend), Mark: guard.Mark(c.IPTables.MasqueradeBit)})
		},
		Keeps:        true,
		Needs:        iptables.Needs(),
		Capabilities: func(config.Config) balancer.Capabilities { return iptables.Capabilities() },
		Render: func(c config.Config, frontends []*balancer.Frontend) string {
			return iptables.Render(frontends, guard.Mark(c.IPTables.MasqueradeBit))
		},
		Cleanup: func(ctx context.Context, _ config.Config, dry bool) ([]string, error) {
			return iptables.Cleanup(ctx, dry)
		},
	}
}
