package modes

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	"vipd/dataplane/iptables"
	"vipd/dataplane/ipvs"
	"vipd/dataplane/nftables"
	"vipd/dataplane/userspace"
)

// Mode is one way to carry services out.
type Mode struct {
	// Name is what mode, --mode and status say.
	Name config.ModeName
	// New proves by a trial that the mode works here, and makes its dataplane. The error says why it does not, and what
	// helps.
	New func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error)
	// Keeps: traffic goes on without this process, so that a stop leaves everything in place.
	Keeps bool
	// Needs of the host, of a mode at its best; those of a dataplane in use are in its traits.
	dataplane.Needs
	// Capabilities is what the mode can honour where all that it can use is there; a dataplane in use may say less.
	Capabilities func() balancer.Capabilities
	// Render writes what the mode would program, in its native syntax.
	Render func(c config.Config, frontends []*balancer.Frontend) string
	// Cleanup removes what a process that is gone left of this mode, and returns what it did in words, or, with dry, what
	// it would do. What all modes share is not its business.
	Cleanup func(ctx context.Context, c config.Config, dry bool) ([]string, error)
}

// TrialTime bounds what New takes, a fraction of a second on a machine that is not overloaded.
const TrialTime = 45 * time.Second

// All returns the modes, the best first: auto takes the first that works.
func All() []Mode {
	return []Mode{guarded(ipvsMode()), guarded(nftablesMode()), guarded(iptablesMode()), userspaceMode()}
}

// guarded is a mode that works only with the guard, which has to pass its own trial first.
func guarded(m Mode) Mode {
	trial := m.New
	m.New = func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
		if err := guard.Try(); err != nil {
			return nil, err
		}
		return trial(ctx, c, log)
	}
	return m
}

// Find returns the mode of a name; false: this version does not have it.
func Find(name config.ModeName) (Mode, bool) {
	all := All()
	if i := slices.IndexFunc(all, func(m Mode) bool { return m.Name == name }); i >= 0 {
		return all[i], true
	}
	return Mode{}, false
}

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
		Capabilities: ipvs.Capabilities,
		Render: func(_ config.Config, frontends []*balancer.Frontend) string {
			return inputOf("ipvsadm --restore", ipvs.Render(frontends))
		},
		Cleanup: func(ctx context.Context, c config.Config, dry bool) ([]string, error) {
			return ipvs.Cleanup(ctx, c.RunDir, dry)
		},
	}
}

func nftablesMode() Mode {
	return Mode{
		Name: config.NFTablesMode,
		New: func(_ context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			return nftables.New(nftables.Options{Log: log, Mark: guard.MarkBits(c.IPTables.MasqueradeBit)})
		},
		Keeps:        true,
		Needs:        nftables.Needs(),
		Capabilities: nftables.Capabilities,
		Render: func(c config.Config, frontends []*balancer.Frontend) string {
			return inputOf("nft -f -", nftables.Render(frontends, guard.MarkBits(c.IPTables.MasqueradeBit)))
		},
		Cleanup: func(_ context.Context, _ config.Config, dry bool) ([]string, error) { return nftables.Cleanup(dry) },
	}
}

func iptablesMode() Mode {
	return Mode{
		Name: config.IPTablesMode,
		New: func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			return iptables.New(ctx, iptables.Options{Log: log, Variant: iptables.Variant(c.IPTables.Backend), Mark: guard.Mark(c.IPTables.MasqueradeBit)})
		},
		Keeps:        true,
		Needs:        iptables.Needs(),
		Capabilities: iptables.Capabilities,
		Render: func(c config.Config, frontends []*balancer.Frontend) string {
			return iptables.Render(frontends, guard.Mark(c.IPTables.MasqueradeBit))
		},
		Cleanup: func(ctx context.Context, _ config.Config, dry bool) ([]string, error) {
			return iptables.Cleanup(ctx, dry)
		},
	}
}

func userspaceMode() Mode {
	return Mode{
		Name: config.UserspaceMode,
		New: func(_ context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			return userspace.New(userspace.Options{
				Log: log, Intercept: userspace.Interception(c.Userspace.Intercept),
			})
		},
		Capabilities: userspace.Capabilities,
		Render:       func(_ config.Config, frontends []*balancer.Frontend) string { return userspace.Render(frontends) },
		Cleanup: func(ctx context.Context, _ config.Config, dry bool) ([]string, error) {
			return userspace.Cleanup(ctx, dry)
		},
	}
}

// inputOf says of text, which may stand beside others, what program takes it.
func inputOf(program, text string) string {
	if text == "" {
		return ""
	}
	return "# " + program + "\n" + text
}
