package balancer

import "net/netip"

// Once compiles the inputs in a single round. Next may compile them in several rounds.
func (c *Compiler) Once(env Env, in Inputs) Desired { return c.compile(env, in) }

// NodePortAddresses exports nodePortAddresses for tests.
var NodePortAddresses = nodePortAddresses

// Concerned returns the number of services that Once would compile again after a change to the
// environment.
func (c *Compiler) Concerned(env Env, in Inputs) int {
	w := work{services: map[Name]bool{}, vipStates: map[netip.Addr]bool{}}
	c.markEnvChanges(&w, &env, &in)
	return len(w.services)
}
