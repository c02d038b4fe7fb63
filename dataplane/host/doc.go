// Package host keeps in order what all modes share on a host: the VIPs' addresses, the guard, and sysctls. It
// implements dataplane.Host. The engine calls Prepare before it applies frontends and Finish after it:
//
//	Prepare(want)     guard: restrictions of what is to come, end of what is not to be open -> addresses -> routes, sysctls
//	  ... the dataplane applies frontends ...
//	Finish(applied)   what was applied is opened, and addresses that serve now are announced; what no applied frontend
//	                  needs any more is removed, in reverse
//
// Addresses. A VIP that the host has anyway is used as it is, and never touched. Every other one is added to the device
// that the configuration names: a dummy device that vipd makes, lo where the kernel has no dummies, or a real link, on
// which arrivals are announced. A local route beside the address names the node's own address as the source of the
// host's connections to the VIP: an endpoint may hold the same VIP, and would answer to itself otherwise.
//
// Guard. Package guard keeps in netfilter what all modes share. An address is added when the guard stands, and the guard goes
// after the last address: no port of the host's own is ever open on a VIP. Where the guard is busy addresses wait; where it
// is unavailable, that is a problem, and they do not.
//
// Ledger. Before each first change a file in the run folder says what is about to be ours, so that after kill -9 the
// next process, or Cleanup, knows what to remove and that all else belongs to others. An address that is added stays in
// it until it is removed, with every device that it may be on. It holds for one boot.
//
// A Host has these parts. All of them share a state: one record for each address, what is known of the kernel, and the ledger.
//
//	observer    keeps what is known up to date by the kernel's events, and makes the device for VIPs
//	mover       adds addresses and removes them
//	routes      gives VIPs their local routes
//	announcer   announces VIPs to the neighbors
//	tuning      keeps sysctls
//
// The decision about an address is a function of its record, its place, and the device: see address.decide.
//
// The package does not forward traffic, and knows of modes only what dataplane.Needs says: those whose traffic the kernel forwards
// get ip_forward, masquerading and one-arm rules, and virtual servers their sysctls. Where the host lacks privilege or a kernel
// feature it says so in Problems, and does the rest.
package host
