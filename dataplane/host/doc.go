// Package host maintains the state of a host that all modes share: the VIPs' addresses, the guard,
// and sysctls. It implements [dataplane.Host]. The engine calls Prepare before it applies
// frontends, and Finish afterwards:
//
//	Prepare(want)     guard: add restrictions, close ports -> addresses -> routes, sysctls
//	  ... the dataplane applies frontends ...
//	Finish(applied)   open the applied ports, announce addresses that serve now,
//	                  remove what no applied frontend needs, in reverse order
//
// Addresses. If the host already has a VIP, vipd uses the address and never changes it. vipd adds
// every other VIP to the configured device: a dummy device that vipd creates, lo if the kernel has
// no dummy devices, or a real link, on which new addresses are announced. A local route to each VIP
// selects the node's own address as the source of the host's connections to the VIP. Otherwise an
// endpoint that also holds the VIP would answer to itself.
//
// Guard. Package guard maintains the netfilter rules that all modes share. An address is added
// after the guard is complete, and the guard is removed after the last address, so the host's own
// ports are never reachable on a VIP. While nf_tables is busy, vipd adds no addresses. If the guard
// is unavailable, vipd reports a problem and adds the addresses anyway.
//
// Ledger. Before vipd first creates or changes an object, it records the object in a file in the
// run folder. After kill -9, the next process or Cleanup removes exactly these objects, because all
// other objects belong to other programs. An address stays in the ledger until it is removed,
// together with every device that may have it. The ledger is valid for one boot.
//
// A Host consists of these parts, which share a state: a record for each address, the observed
// kernel state, and the ledger.
//
//	observer    follows the kernel's events, and creates the device for VIPs
//	mover       adds and removes addresses
//	routes      maintains the local routes to VIPs
//	announcer   announces VIPs to the neighbors
//	tuning      maintains sysctls
//
// The decision who holds an address depends on its record, on the devices that have it, and on the
// device for VIPs (see address.decide).
//
// The package does not forward traffic, and knows only the [dataplane.Needs] of a mode. For a mode
// whose traffic the kernel forwards, it sets ip_forward, and adds rules that masquerade traffic
// whose replies would otherwise bypass this node. For a mode that uses virtual servers, it sets
// their sysctls. If the host lacks a privilege or a kernel feature, Problems reports it, and
// everything else works.
package host
