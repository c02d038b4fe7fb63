package modes

import (
	"context"
	"log/slog"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/dataplane/ipvs"
)

func ipvsMode() Mode {
	return Mode{
		Name: config.IPVSMode,
		New: func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			return ipvs.New(ctx, ipvs.Options{
				Log: log, RunDir: c.RunDir,
				TCPTimeout: c.IPVS.TCPTimeout, TCPFinTimeout: c.IPVS.TCPFinTimeout, UDPTimeout: c.IPVS.UDPTimeout,
			})
		},
		Keeps:        true,
		Needs:        ipvs.Needs(),
		Capabilities: func(config.Config) balancer.Capabilities { return ipvs.Capabilities() },
		Render: func(_ config.Config, frontends []*balancer.Frontend) string {
			text := ipvs.Render(frontends)
			if text != "" { // beside what else is programmed, it says whose input it is
				text = "# ipvsadm --restore\n" + text
			}
			return text
		},
		Cleanup: func(ctx context.Context, c config.Config, dry bool) ([]string, error) {
			return ipvs.Cleanup(ctx, c.RunDir, dry)
		},
	}
}
