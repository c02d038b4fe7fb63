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

// Mode is a way to serve traffic.
type Mode struct {
	// Name is the mode's name in the config, in --mode and in status.
	Name config.ModeName
	// New tries whether the mode works here, and returns its dataplane. The error contains the
	// reason and the remedy.
	New func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error)
	// Keeps reports whether traffic continues without this process. If so, everything stays in
	// place when vipd stops.
	Keeps bool
	// Needs are the mode's requirements of the host. A dataplane in use may need less; see its
	// traits.
	dataplane.Needs
	// Capabilities returns the settings that the mode supports on a fully equipped host. A
	// dataplane in use may have fewer.
	Capabilities func() balancer.Capabilities
	// Render returns the mode's rules in their native syntax.
	Render func(c config.Config, frontends []*balancer.Frontend) string
	// Cleanup removes the objects of this mode that an earlier process left, and returns its
	// actions as text. A dry run only returns the actions. Objects that all modes share stay.
	Cleanup func(ctx context.Context, c config.Config, dry bool) ([]string, error)
}

// TrialTime is the maximum duration of New. On a machine that is not overloaded, New needs less
// than a second.
const TrialTime = 45 * time.Second

// All returns the modes, starting with the best. The mode auto is the first of them that works.
func All() []Mode {
	return []Mode{guarded(ipvsMode()), guarded(nftablesMode()), guarded(iptablesMode()), userspaceMode()}
}

// guarded wraps New of a mode that needs the guard. The guard must pass its own trial first.
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

// Find returns the mode with a name, and reports whether this version has it.
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
			o := ipvs.Options{Log: log, RunDir: c.RunDir, TCPFinTimeout: c.IPVS.TCPFinTimeout, UDPTimeout: c.IPVS.UDPTimeout}
			if t := c.IPVS.TCPTimeout; t != nil {
				o.TCPTimeout = *t
			} else {
				o.FollowConntrack = c.Host.ManageSysctls
			}
			return ipvs.New(ctx, o)
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

// inputOf adds a comment with the name of the program that reads the text.
func inputOf(program, text string) string {
	if text == "" {
		return ""
	}
	return "# " + program + "\n" + text
}
