package probe

import "vipd/balancer/health"

// New returns a Probe with its own store of system authorities, so tests don't share a store.
func New(s health.Subject) *Probe { return newProbe(s, &systemStore{}) }
