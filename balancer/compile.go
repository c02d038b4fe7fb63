package balancer

import (
	"iter"
	"net/netip"
	"time"

	"vipd/balancer/snap"
)

// Env describes this node and its mode. It holds the compiler inputs that do not define services.
type Env struct {
	// Node is the name of this node, and Zone is the name of its zone. Locality depends on them.
	Node, Zone string
	// Standby reports whether the node is on standby, so it gives up the VIPs that it can withdraw.
	Standby bool
	// Local are the node's own addresses, sorted, without loopback addresses and without the VIPs
	// that vipd has added.
	Local []netip.Addr
	// LocalInSubnets lists the addresses in Local that have a subnet on their device. VIPs that
	// vipd owner adds do not have a subnet.
	LocalInSubnets []netip.Addr
	// ExternalVIPs reports whether another program adds and removes VIPs. Then vipd serves only
	// VIPs in Local and loopback VIPs.
	ExternalVIPs bool
	// NodePortAddresses are the local addresses on which services can open node ports.
	// [Compiler.Next] sets them.
	NodePortAddresses []netip.Addr
	// NodePorts restricts NodePortAddresses to these networks. If empty, there is no restriction.
	NodePorts []netip.Prefix
	// Allowed are the networks in which services may claim VIPs. If empty, services from files may
	// claim any address, and services from etcd may claim any address except loopback, link-local
	// and multicast addresses, and the node's own addresses.
	Allowed []netip.Prefix
	// AllowedEndpoints are the networks in which endpoints from etcd may use the addresses of
	// nodes.
	AllowedEndpoints []netip.Prefix
	// Reserved are the addresses and ports that services from etcd may not claim on this node.
	Reserved []Reserved
	// Nodes maps the addresses of the other live nodes of the fleet to their names.
	Nodes snap.Map[netip.Addr, NodeName]
	// RealServer reports whether this host is a real server of direct routing. It then silently
	// holds the VIPs of services that have it as an endpoint, and is not the gateway of these VIPs.
	RealServer bool
	// MayOwn reports whether this host may own VIPs that only one host holds (HoldOne). It is then
	// the gateway of the VIPs that it owns.
	MayOwn bool
	// AllowExec reports whether checks of services from etcd may run programs on this host.
	AllowExec bool
	// TLSDir is the folder whose TLS files the checks of services from etcd may use. "" means
	// DefaultTLSDir.
	TLSDir string
	// FleetExec reports whether any node of the fleet has AllowExec. It is also true if the other
	// nodes are unknown.
	FleetExec bool
	// Capabilities describes the features of the current mode.
	Capabilities Capabilities
}

// Reserved is an address that the node needs, or a port on its own addresses.
type Reserved struct {
	// Addr is the address. The zero value means all of the node's own addresses, and requires a
	// port.
	Addr netip.Addr
	// Port is 0 if the whole address is reserved. A service from etcd may claim a reserved address
	// only if Env.Allowed has an entry for exactly this address. A reserved port is always refused,
	// because the service would cut off the program that uses it.
	Port  uint16
	Proto Protocol
	// Etcd reports whether it is an address or port of etcd, on any host.
	Etcd bool
	// Description names the user of the address or port for messages, such as "an address of etcd".
	Description string
}

// Inputs are the tables that services are compiled from. Each table has one writer, which keeps the
// pointers of unchanged values.
type Inputs struct {
	// Services are the valid definitions.
	Services snap.Map[Name, *Service]
	// Endpoints are the endpoints registered separately from their services. They join the defined
	// endpoints.
	Endpoints snap.Map[EndpointID, *Endpoint]
	// Resolved holds the answers to this node's lookups. Before the first answer, the entry of a
	// lookup is empty.
	Resolved snap.Map[LookupID, *Resolution]
	// Overrides are operators' overrides of endpoint settings.
	Overrides snap.Map[Target, *Override]
	// Health holds the checks' verdicts, each for an address and port.
	Health snap.Map[Target, Verdict]
	// Agents holds the agents' latest answers, each for an address and port.
	Agents snap.Map[Target, AgentAnswer]
	// Ejected holds the endpoints that get no new connections because connection attempts failed.
	// Their targets have a port.
	Ejected snap.Map[Target, Ejection]
	// Drains holds removed backends whose connections may continue (see [Memory]).
	Drains snap.Map[BackendKey, Drain]
	// Ramps holds the backends in slow start, whose weight is increasing (see [Memory]).
	Ramps snap.Map[BackendKey, Ramp]
	// DrainingVIPs holds the VIPs without frontends whose connections may continue (see [Memory]).
	DrainingVIPs snap.Map[netip.Addr, Drain]
	// Holders maps each key to the service that last held it (see [Memory]).
	Holders snap.Map[Key, Name]
	// VIPs holds the settings of addresses. Pools provide defaults for the addresses in their
	// networks.
	VIPs  snap.Map[netip.Addr, *VIP]
	Pools snap.Map[Name, *Pool]
	// Withdrawals holds VIPs that were withdrawn (see [Memory]).
	Withdrawals snap.Map[netip.Addr, Withdrawal]
}

// BackendKey identifies a backend of one frontend.
type BackendKey struct {
	Frontend Key            `json:"frontend"`
	Backend  netip.AddrPort `json:"backend"`
}

// Compare orders by frontend, then backend.
func (d BackendKey) Compare(other BackendKey) int {
	if c := d.Frontend.Compare(other.Frontend); c != 0 {
		return c
	}
	return d.Backend.Compare(other.Backend)
}

// onFrontend yields the entries of m for one frontend.
func onFrontend[V comparable](m snap.Map[BackendKey, V], frontend Key) iter.Seq2[BackendKey, V] {
	return m.While(BackendKey{Frontend: frontend}, func(k BackendKey) bool { return k.Frontend == frontend })
}

// Drain holds the deadline for connections to a removed backend or VIP. The deadline is in UTC
// without a monotonic reading, so it can be stored and compared with ==.
type Drain struct {
	Until time.Time `json:"until"`
}

// Desired is the compiler's result, which a dataplane applies.
type Desired struct {
	// Frontends holds all frontends that must exist. The dataplane must remove any other frontend.
	Frontends snap.Map[Key, *Frontend]
	// Addresses maps each VIP to its number of frontends. Node ports do not count. The number is 0
	// for a VIP that remains only for its last connections.
	Addresses snap.Map[netip.Addr, int]
	// Direct maps each VIP that this host holds silently, as a real server of direct routing, to
	// its service. Other hosts are the gateways of these VIPs.
	Direct snap.Map[netip.Addr, Name]
	// VIPStates holds the states of the VIPs that have settings. The frontends on a VIP are applied
	// even if it is not held, so they are ready when the address arrives.
	VIPStates snap.Map[netip.Addr, VIPState]
	// Contested maps each key that several services claim to the service that holds it.
	Contested snap.Map[Key, Name]
	// Problems are the problems of each service.
	Problems snap.Map[Name, *[]Problem]
	// Revision is the store revision of the inputs. The code that publishes a Desired sets it.
	Revision Revision
}

// Revision identifies a version of the store's contents. It also records since when changes have
// been pending.
type Revision struct {
	// Store is the store's revision. For files, it is a counter that starts at 1. For etcd, it is
	// etcd's revision.
	Store int64 `json:"store"`
	// Seen is when vipd noticed the store's oldest pending change, or zero if no change is pending.
	Seen time.Time `json:"seen,omitzero"`
}
