package balancer

// Once is compile.
func (c *Compiler) Once(env Env, in Inputs) Desired { return c.compile(env, in) }

// NodePortAddresses is nodePortAddresses.
var NodePortAddresses = nodePortAddresses
