package balancer

import (
	"iter"
	"net/netip"
	"time"

	"vipd/balancer/snap"
)

// Env is what compiling depends on besides the services: facts about this node and the mode.
type Env struct {
	// Node and Zone are this node's names, for locality.
	Node, Zone string
	// Standby: the node gives up the VIPs that it can withdraw.
	Standby bool
	// Local are the node's own addresses, sorted; VIPs that vipd holds and loopback addresses are not among them.
	Local []netip.Addr
	// Networked are the addresses of Local that have a network on their device. A VIP that vipd owner brings has none.
	Networked []netip.Addr
	// LocalOnly: another program brings VIPs, which are served while they are among Local; loopback ones always.
	LocalOnly bool
	// NodePortAddresses are those of them that node ports open on, as far as NodePorts lets them. Compiler.Next fills them in.
	NodePortAddresses []netip.Addr
	// NodePorts narrows NodePortAddresses; empty: all of them.
	NodePorts []netip.Prefix
	// Allowed are the networks that services may claim VIPs in. Empty: any for services from files; all but loopback,
	// link-local and multicast ones and the node's own for services from etcd.
	Allowed []netip.Prefix
	// AllowedEndpoints are the networks of own addresses, and of other nodes', that services from etcd may lead to.
	AllowedEndpoints []netip.Prefix
	// Reserved is what services from etcd may not claim here: see Reserved.
	Reserved []Reserved
	// Nodes has the addresses of the other live nodes of the fleet, each with the name of its node.
	Nodes snap.Map[netip.Addr, NodeName]
	// AllowExec: services from etcd may have checks that run programs of this host.
	AllowExec bool
	// TLSDir is the folder of the files that checks of services from etcd may use for TLS. "" means DefaultTLSDir.
	TLSDir string
	// FleetExec: some node of the fleet is known to have such checks run, or it is not known which do.
	FleetExec bool
	// Capabilities are those of the mode in use.
	Capabilities Capabilities
}

// Reserved is an address, or a port of the node's own addresses, that the node can't do without.
type Reserved struct {
	// Addr is the address. The zero value means all of the node's own, and needs a port.
	Addr netip.Addr
	// Port is 0 where the whole address is reserved. Services from etcd claim such an address only where Env.Allowed has a
	// network of it alone. They never get a reserved port: what uses it would be cut off, whatever the service is for.
	Port  uint16
	Proto Protocol
	// Etcd reports whether it is an address or a port of etcd, on whichever host.
	Etcd bool
	// What it is, such as "an address of etcd".
	What string
}

// Inputs is everything that has a say in what is compiled. Each has one writer. The maps share their values with
// their publishers, who keep the pointer of a value that has not changed.
type Inputs struct {
	// Services are the valid definitions.
	Services snap.Map[Name, *Service]
	// Endpoints are those published apart from their services; they join the service's own.
	Endpoints snap.Map[EndpointID, *Endpoint]
	// Overrides are what operators said by hand.
	Overrides snap.Map[Target, *Override]
	// Health holds the verdicts of checks, each for an address with its port.
	Health snap.Map[Target, Verdict]
	// Ejected are the endpoints, each with its port, that get no new connections because connects to them failed.
	Ejected snap.Map[Target, Ejection]
	// Drains are removed endpoints whose connections may live on; see Memory.
	Drains snap.Map[DrainKey, Drain]
	// Ramps are backends whose weight is still ramping up; see Memory.
	Ramps snap.Map[DrainKey, Ramp]
	// Leaving are VIPs without frontends whose connections may live on; see Memory.
	Leaving snap.Map[netip.Addr, Drain]
	// Holders say which service had a contested key last; see Memory.
	Holders snap.Map[Key, Name]
	// VIPs are the settings of addresses, and Pools those of all addresses of a pool without settings.
	VIPs  snap.Map[netip.Addr, *VIP]
	Pools snap.Map[Name, *Pool]
	// Away are VIPs that were withdrawn; see Memory.
	Away snap.Map[netip.Addr, Away]
}

// DrainKey names a removed endpoint at one frontend.
type DrainKey struct {
	Frontend Key            `json:"frontend"`
	Backend  netip.AddrPort `json:"backend"`
}

// Compare orders by frontend, then backend.
func (d DrainKey) Compare(other DrainKey) int {
	if c := d.Frontend.Compare(other.Frontend); c != 0 {
		return c
	}
	return d.Backend.Compare(other.Backend)
}

// ofFrontend yields what is remembered of the backends of a frontend.
func ofFrontend[V comparable](m snap.Map[DrainKey, V], frontend Key) iter.Seq2[DrainKey, V] {
	return m.While(DrainKey{Frontend: frontend}, func(k DrainKey) bool { return k.Frontend == frontend })
}

// Drain is what is remembered of a removed endpoint or VIP: until when its connections may live, in UTC and without a
// monotonic reading, so that it can be kept on disk and compared with ==.
type Drain struct {
	Until time.Time `json:"until"`
}

// Desired is what is to be applied: the result of compiling.
type Desired struct {
	// Frontends are complete: what is not here must not be served.
	Frontends snap.Map[Key, *Frontend]
	// Addresses counts the frontends (node ports aside) on each VIP; 0 for one that is only kept for what is left of its
	// connections.
	Addresses snap.Map[netip.Addr, int]
	// Standings say how those of Addresses that have settings stand here. The frontends on one that is not held are applied
	// all the same: when the address comes, all is ready.
	Standings snap.Map[netip.Addr, Standing]
	// Contested says who has each key that more than one service claims.
	Contested snap.Map[Key, Name]
	// Problems are those of services that can't be served as written, by service.
	Problems snap.Map[Name, *[]Problem]
	// Revision is that of the store's state that this was made from. Who publishes a Desired fills it in.
	Revision Revision
}

// Revision says which state of the store something was made from, and since when that state is known.
type Revision struct {
	// Store is the store's own revision: counts up from 1 for files, etcd's revision for etcd.
	Store int64 `json:"store"`
	// Seen is when the oldest change of the store that is not applied yet was seen; zero means there is none.
	Seen time.Time `json:"seen,omitzero"`
}
