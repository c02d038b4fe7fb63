package store

import (
	"context"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Source publishes the state of one place.
type Source interface {
	// Watch publishes the state whenever it has changed, until ctx ends, and returns nil then. The first snapshot is
	// complete; so is each later one. Changes that come close together are published as one. publish is never called
	// by two goroutines at once, and must not block. An error means that this source can't go on at all; whatever can
	// pass (a missing file, a lost connection, a syntax error) is a problem in the snapshot instead.
	Watch(ctx context.Context, publish func(Snapshot)) error
}

// Snapshot is the complete state of a source. Equal values keep their old pointer from one snapshot to the next.
type Snapshot struct {
	Services  snap.Map[balancer.Name, *balancer.Service]
	Endpoints snap.Map[balancer.EndpointID, *balancer.Endpoint]
	Overrides snap.Map[balancer.Target, *balancer.Override]
	// VIPs are the settings of addresses, and Pools what pools say of theirs.
	VIPs  snap.Map[netip.Addr, *balancer.VIP]
	Pools snap.Map[balancer.Name, *balancer.Pool]
	// Nodes are the live nodes of the fleet, this node included.
	Nodes snap.Map[balancer.NodeName, *balancer.Node]
	// Problems are what was found wrong in what users wrote. What they are about is absent from the maps, or there in
	// its last good state.
	Problems []balancer.Problem
	// Retained are the services that are here in their last good state because of an error in what defines them, by name. Vanished are
	// those of them that nothing defines any more: the error may hide their definition.
	Retained, Vanished []balancer.Name
	// Revision counts up with each state that differs from the one before; a store that has revisions uses those.
	Revision int64
	// Connected is false while the place can't be read; Err says why. What it holds is here in its last good state then,
	// and absent if it could not be read since the source started.
	Connected bool
	Err       error
	// Began is when the source noticed the first of the changes since the snapshot before; zero means not known.
	Began time.Time
	// Settings are what the file of the source says besides services and VIPs, for the program that follows it; nil for a source
	// without such a file. They keep their pointer as long as they say the same on the same lines. A file that can't be read,
	// or is no valid document, leaves them as they were.
	Settings Document
	// Kept: the place could not be read since the source started, but what it held is known from before.
	Kept bool
}

// Document is what a file says, with the place of each of its parts. It never changes.
type Document interface {
	// File is the name of the file, and Folder is where paths in it begin.
	File() string
	Folder() string
	// Tree is what the file says, as decode.Into takes it. It is shared: don't change it.
	Tree() map[string]any
	// Where returns the place of a path such as etcd.endpoints[2], or of the nearest thing around it.
	Where(path string) balancer.Origin
}
