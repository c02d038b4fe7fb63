package model

import (
	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/lookup"
	"vipd/store"
)

// State is one compiled state with what it was made from.
type State struct {
	Snapshot store.Snapshot
	Inputs   balancer.Inputs
	Env      balancer.Env
	Desired  balancer.Desired
	// Checked is what has a health check, whoever makes it.
	Checked snap.Map[balancer.Target, health.Subject]
	// Local is what was said by hand on this node.
	Local  snap.Map[balancer.Target, *balancer.Override]
	Config config.Config
	// Problems are of the configuration, and of what is kept on disk.
	Problems []balancer.Problem
	// Complete: the first snapshot is in it. EverRead: the store could be read at least once.
	Complete, EverRead bool
	// Lacking are the problems of checks that this node can't carry out, which are as many as Unable.
	Lacking []balancer.Problem
	Unable  int
	// Fell is what went down from being up.
	Fell snap.Map[balancer.Target, bool]
}

// Place is where what users name is searched: among all services, with what is said of them by hand on this node.
func (s *State) Place() lookup.Place {
	in := s.Inputs
	in.Overrides = s.Local
	return lookup.Place{Inputs: &in}
}

// fallen keeps, from those before, the targets that went down from being up. What was down from the first look on had no
// connections to be cut.
func (s *State) fallen(before *State) {
	s.Fell = before.Fell
	for t, c := range snap.Diff(before.Inputs.Health, s.Inputs.Health) {
		switch {
		case c.New != balancer.HealthDown && s.Fell.Has(t):
			s.Fell = s.Fell.Delete(t)
		case c.New == balancer.HealthDown && c.Old == balancer.HealthUp:
			s.Fell = s.Fell.Set(t, true)
		}
	}
}
