package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
)

// chosen is the mode in use, and why.
type chosen struct {
	modes.Mode
	dataplane dataplane.Dataplane
	fallback  bool
	reason    string
}

// trialTime bounds the trial of one mode.
const trialTime = 20 * time.Second

// choose tries the wanted mode, then the others from the best on.
func choose(all []modes.Mode, c config.Config, log *slog.Logger) (chosen, error) {
	var reasons []string
	for _, name := range order(all, c.Mode) {
		m, dp, err := try(all, name, c, log)
		if err != nil {
			reasons = append(reasons, fmt.Sprintf("%s: %v", name, err))
			if c.Mode != config.AutoMode && c.StrictMode {
				return chosen{}, fmt.Errorf("mode %s is not usable here, and strict_mode forbids another: %w", name, err)
			}
			continue
		}
		out := chosen{Mode: m, dataplane: dp}
		out.fallback = c.Mode != config.AutoMode && name != c.Mode
		switch {
		case len(reasons) > 0:
			out.reason = "not " + strings.Join(reasons, "; not ")
		case c.Mode == config.AutoMode:
			out.reason = "the best that works here"
		default:
			out.reason = "configured"
		}
		if out.fallback {
			log.Error("the wanted mode is not usable here; another one serves", "wanted", c.Mode, "mode", name, "why", out.reason)
		}
		return out, nil
	}
	return chosen{}, errors.New("no mode is usable here: " + strings.Join(reasons, "; "))
}

// order lists the modes to be tried: the wanted one, then the others, the best first.
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

func try(all []modes.Mode, name config.ModeName, c config.Config, log *slog.Logger) (modes.Mode, dataplane.Dataplane, error) {
	for _, m := range all {
		if m.Name == name {
			ctx, cancel := context.WithTimeout(context.Background(), trialTime)
			defer cancel()
			dp, err := m.New(ctx, c, log.With("component", "dataplane", "dataplane", string(name)))
			return m, dp, err
		}
	}
	return modes.Mode{}, nil, errors.New("this version does not have it")
}
