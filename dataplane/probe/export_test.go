package probe

import "vipd/balancer/health"

// New returns a probe with its own system certificates.
func New(s health.Subject) *Probe { return newProbe(s, &systemStore{}) }
