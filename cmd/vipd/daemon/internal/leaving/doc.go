// Package leaving releases VIPs that no longer have frontends as soon as their last connection
// ends.
//
//	model.State.Inputs.DrainingVIPs -> Run -> no connection -> model.Release
//
// Otherwise such a VIP would stay local for its services' drain_timeout, and this host could not
// reach another host that has the address. The package itself removes no addresses, and never
// extends the time that balancer.Memory sets for a VIP.
package leaving
