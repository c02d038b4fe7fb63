package probe

import "vipd/balancer/health"

// New returns a probe with system certificates of its own.
func New(s health.Subject) *Probe { return newProbe(s, &systemStore{}) }
