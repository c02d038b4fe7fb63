package health

import "vipd/balancer"

// Dirty returns the number of services whose targets Next would compute again.
func (t *Targets) Dirty(env *balancer.Env, in *balancer.Inputs) int { return len(t.dirty(env, in)) }
