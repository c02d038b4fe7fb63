// Package leaving releases VIPs that lost their last frontend as soon as their last connection
// ends.
//
//	model.State.Inputs.Leaving -> Run -> no connection -> model.Release
//
// Without it, such a VIP stays local for the drain_timeout of its services, and the host can't
// reach another host that has the address. The package removes nothing itself, and never extends
// the time that balancer.Memory sets for a VIP.
package leaving
