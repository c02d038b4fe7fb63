// Package leaving gives up VIPs that lost their last frontend as soon as no connection to them is left.
//
//	model.State.Inputs.Leaving -> Run -> no connection -> model.Release
//
// Without it, such a VIP stays local for the drain_timeout of its services, and the host can't reach another host that has the address.
// It removes nothing itself, and never extends the time that balancer.Memory gives a VIP.
package leaving
