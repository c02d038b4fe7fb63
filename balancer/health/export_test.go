package health

import "vipd/balancer"

// Dirty counts the services whose subjects Next would make again.
func (t *Targets) Dirty(env *balancer.Env, in *balancer.Inputs) int { return len(t.dirty(env, in)) }
