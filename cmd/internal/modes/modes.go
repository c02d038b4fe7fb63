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

// Mode is one of vipd's methods of serving traffic, such as ipvs mode.
type Mode struct {
	// Name is the mode's name in the configuration, in --mode and in status.
	Name config.ModeName
	// New checks whether the mode works on this host, and returns its dataplane. The error explains
	// why the mode does not work, and how to fix it.
	New func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error)
	// Keeps reports whether traffic continues without vipd. If so, vipd leaves its kernel objects
	// in place when it stops.
	Keeps bool
	// Needs describes what the mode requires from the host. The dataplane that New returns may need
	// less, as its traits show.
	dataplane.Needs
	// Capabilities returns the settings that the mode supports on a host with all kernel features.
	// The dataplane that New returns may support fewer.
	Capabilities func() balancer.Capabilities
	// Render returns the mode's rules for the frontends in their native syntax, such as nft's.
	Render func(c config.Config, frontends []*balancer.Frontend) string
	// RenderDirect returns the rules for direct routing, which depend on this host's devices and
	// routes. It is nil if the mode has none.
	RenderDirect func(frontends []*balancer.Frontend) (string, error)
	// Cleanup removes this mode's objects that an earlier process left behind, and returns a
	// description of each action. If dry is true, it removes nothing. It never removes objects that
	// all modes share.
	Cleanup func(ctx context.Context, c config.Config, dry bool) ([]string, error)
}

// TrialTime limits how long New may take. On a machine that is not overloaded, New takes less than
// a second.
const TrialTime = 45 * time.Second

// All returns the modes, starting with the best. The mode auto selects the first mode that works.
func All() []Mode {
	return []Mode{guarded(ipvsMode()), guarded(nftablesMode()), guarded(iptablesMode()), userspaceMode()}
}

// guarded returns m with a New function that fails if the guard does not work on this host.
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

// Find returns the mode with this name. The bool is false if this version does not have the mode.
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
			return inputOf("ipvsadm --restore", ipvs.Render(frontends)) + inputOf("nft -f -", ipvs.RenderMarks(frontends))
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
		RenderDirect: nftables.RenderDirect,
		Cleanup:      func(_ context.Context, _ config.Config, dry bool) ([]string, error) { return nftables.Cleanup(dry) },
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
	shared := userspace.NewReplies()
	return Mode{
		Name: config.UserspaceMode,
		New: func(_ context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
			return userspace.New(userspace.Options{
				Log: log, Intercept: userspace.Interception(c.Userspace.Intercept), Replies: shared,
			})
		},
		Capabilities: userspace.Capabilities,
		Render:       func(_ config.Config, frontends []*balancer.Frontend) string { return userspace.Render(frontends) },
		Cleanup: func(ctx context.Context, _ config.Config, dry bool) ([]string, error) {
			return userspace.Cleanup(ctx, dry)
		},
	}
}

// inputOf precedes text with a comment line that names the program to pass it to. It returns an
// empty text unchanged.
func inputOf(program, text string) string {
	if text == "" {
		return ""
	}
	return "# " + program + "\n" + text
}
