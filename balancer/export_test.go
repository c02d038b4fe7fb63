package balancer

import "net/netip"

// Once compiles the inputs once. Next may compile them several times.
func (c *Compiler) Once(env Env, in Inputs) Desired { return c.compile(env, in) }

var NodePortAddresses = nodePortAddresses

// Concerned returns the number of services that Once would recompile after a change to the
// environment.
func (c *Compiler) Concerned(env Env, in Inputs) int {
	w := work{services: map[Name]bool{}, vipStates: map[netip.Addr]bool{}}
	c.markEnvChanges(&w, &env, &in)
	return len(w.services)
}
