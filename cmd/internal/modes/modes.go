package modes

import (
	"context"
	"log/slog"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane"
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
	Capabilities func(c config.Config) balancer.Capabilities
	// Render writes what the mode would program, in its native syntax.
	Render func(c config.Config, frontends []*balancer.Frontend) string
	// Cleanup removes what a process that is gone left of this mode, and returns what it did in words, or, with dry, what
	// it would do. What all modes share is not its business.
	Cleanup func(ctx context.Context, c config.Config, dry bool) ([]string, error)
}

// All returns the modes, the best first: auto takes the first that works.
func All() []Mode {
	return []Mode{
		ipvsMode(),
		nftablesMode(),
		iptablesMode(),
		userspaceMode(),
	}
}

// Find returns the mode of a name; false: this version does not have it.
func Find(name config.ModeName) (Mode, bool) {
	for _, m := range All() {
		if m.Name == name {
			return m, true
		}
	}
	return Mode{}, false
}
