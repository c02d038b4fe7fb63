package probe

import "vipd/balancer/health"

// New returns a probe with its own store of system authorities.
func New(s health.Subject) *Probe { return newProbe(s, &systemStore{}) }
