package probe

import "vipd/balancer/health"

// New returns a Probe with its own store of system authorities, so tests do not share a store.
func New(s health.Subject) *Probe { return newProbe(s, &systemStore{}) }
