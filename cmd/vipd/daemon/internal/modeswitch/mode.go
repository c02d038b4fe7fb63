package modeswitch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/dataplane"
)

// Chosen is the mode that serves, with the reason why it was chosen.
type Chosen struct {
	modes.Mode
	Dataplane dataplane.Dataplane
	// Fallback reports whether the configured mode can't be used on this host.
	Fallback bool
	// Reason is the reason for the choice. Users see it.
	Reason string
	// left is closed when another mode has taken over. ended is closed when this mode no longer
	// serves anything.
	left, ended chan struct{}
}

// Choice chooses a mode.
type Choice struct {
	// Modes lists the available modes, starting with the best.
	Modes []modes.Mode
	// Configuration provides the current configuration, which names the wanted mode.
	Configuration *liveconfig.Config
	Log           *slog.Logger
	Events        *events.History

	// use is the mode in use, which needs no trial, or nil.
	use *Chosen
	// unfit maps each unusable mode to the reason.
	unfit map[config.ModeName]error
	// before is called before the trial of a mode that is not in use. It may be nil.
	before func(config.ModeName)
}

// Make tries the wanted mode, then all other modes from best to worst, and returns the first that
// works. The mode in use keeps its dataplane, and any other mode gets a new dataplane.
func (c Choice) Make(ctx context.Context) (*Chosen, error) {
	var no refusals
	conf := c.Configuration.Current()
	wanted := conf.Mode
	for _, name := range order(c.Modes, wanted) {
		m, dp, err := c.try(ctx, name, conf)
		if err != nil && ctx.Err() != nil { // vipd is stopping, so the result of the interrupted trial is meaningless
			return nil, ctx.Err()
		}
		if err != nil {
			no.add(name, err)
			if wanted != config.AutoMode && conf.StrictMode {
				return nil, fmt.Errorf("mode %s is not usable here, and strict_mode forbids another mode: %w", name, err)
			}
			continue
		}
		out := &Chosen{Mode: m, Dataplane: dp, Fallback: wanted != config.AutoMode && name != wanted, left: make(chan struct{}), ended: make(chan struct{})}
		if c.use != nil && c.use.Dataplane == dp {
			out.left, out.ended = c.use.left, c.use.ended
		}
		switch {
		case len(no) > 0:
			out.Reason = "not " + no.join("; not ")
		case wanted == config.AutoMode:
			out.Reason = "the best mode that works here"
		default:
			out.Reason = c.Configuration.ModeBy()
		}
		if out.Fallback && (c.use == nil || !c.use.Fallback || c.use.Reason != out.Reason) {
			c.Events.Record(events.Event{
				Kind: events.Mode, Level: slog.LevelError, Text: fmt.Sprintf("%s mode is not usable here, so %s mode is used", wanted, name),
				Cause: out.Reason,
			})
		}
		return out, nil
	}
	return nil, errors.New("no mode is usable here: " + no.join("; "))
}

// refusals lists the reasons why modes are unusable, in the order in which the modes were tried.
type refusals []refusal

// refusal is a reason, and the modes that are unusable because of it.
type refusal struct {
	modes  []string
	reason string
}

// add records the reason why a mode is unusable.
func (r *refusals) add(name config.ModeName, err error) {
	i := slices.IndexFunc(*r, func(one refusal) bool { return one.reason == err.Error() })
	if i < 0 {
		i = len(*r)
		*r = append(*r, refusal{reason: err.Error()})
	}
	(*r)[i].modes = append((*r)[i].modes, string(name))
}

// join returns all reasons as text. Each follows the names of the modes to which it applies.
func (r refusals) join(between string) string {
	all := make([]string, len(r))
	for i, one := range r {
		all[i] = strings.Join(one.modes, ", ") + ": " + one.reason
	}
	return strings.Join(all, between)
}

// try tries the mode called name, and returns it with its dataplane. If the mode does not work, the
// error is the reason.
func (c Choice) try(ctx context.Context, name config.ModeName, conf config.Config) (modes.Mode, dataplane.Dataplane, error) {
	if err := c.unfit[name]; err != nil {
		return modes.Mode{}, nil, err
	}
	if c.use != nil && c.use.Name == name {
		return c.use.Mode, c.use.Dataplane, nil
	}
	for _, m := range c.Modes {
		if m.Name == name {
			if c.before != nil {
				c.before(name)
			}
			ctx, cancel := context.WithTimeout(ctx, modes.TrialTime)
			defer cancel()
			dp, err := m.New(ctx, conf, c.Log.With("component", "dataplane", "dataplane", string(name)))
			return m, dp, err
		}
	}
	return modes.Mode{}, nil, errors.New("this version does not have this mode")
}

// order lists the modes to try: the wanted mode, and then all other modes from best to worst.
func order(all []modes.Mode, wanted config.ModeName) []config.ModeName {
	var names []config.ModeName
	if wanted != config.AutoMode {
		names = append(names, wanted)
	}
	for _, m := range all {
		if m.Name != wanted {
			names = append(names, m.Name)
		}
	}
	return names
}
