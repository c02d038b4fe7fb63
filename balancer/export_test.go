package balancer

import "net/netip"

// Once is compile.
func (c *Compiler) Once(env Env, in Inputs) Desired { return c.compile(env, in) }

// NodePortAddresses is nodePortAddresses.
var NodePortAddresses = nodePortAddresses

// Concerned counts the services that a change of the environment makes Once compile again.
func (c *Compiler) Concerned(env Env, in Inputs) int {
	w := work{services: map[Name]bool{}, standings: map[netip.Addr]bool{}}
	c.concern(&w, &env, &in)
	return len(w.services)
}
