package modes

import (
	"context"
	"log/slog"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	"vipd/dataplane/nftables"
)

func nftablesMode() Mode {
	return Mode{
		Name: config.NFTablesMode,
		New: func(_ context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			return nftables.New(nftables.Options{Log: log, Mark: guard.MarkBits(c.IPTables.MasqueradeBit)})
		},
		Keeps:        true,
		Needs:        nftables.Needs(),
		Capabilities: func(config.Config) balancer.Capabilities { return nftables.Capabilities() },
		Render: func(c config.Config, frontends []*balancer.Frontend) string {
			text := nftables.Render(frontends, guard.MarkBits(c.IPTables.MasqueradeBit))
			if text != "" { // beside what else is programmed, it says whose input it is
				text = "# nft -f -\n" + text
			}
			return text
		},
		Cleanup: func(_ context.Context, _ config.Config, dry bool) ([]string, error) { return nftables.Cleanup(dry) },
	}
}
