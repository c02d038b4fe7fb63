package store

import (
	"context"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Source publishes the services that are defined in one place, such as a file.
type Source interface {
	// Watch publishes the current state, and publishes the state again after each change. It
	// returns nil when ctx ends. Each snapshot is complete, including the first. Changes within a
	// short time are published together. Calls to publish do not overlap, and must not block. Watch
	// returns an error only if the source can't continue at all. A temporary failure, such as a
	// missing file, a lost connection or a syntax error, is a problem in the snapshot.
	Watch(ctx context.Context, publish func(Snapshot)) error
}

// Snapshot is a source's complete state. Equal values keep their pointers from one snapshot to the
// next.
type Snapshot struct {
	Services  snap.Map[balancer.Name, *balancer.Service]
	Endpoints snap.Map[balancer.EndpointID, *balancer.Endpoint]
	Overrides snap.Map[balancer.Target, *balancer.Override]
	// VIPs holds the settings of addresses. Pools holds the pools, and the settings of their
	// addresses.
	VIPs  snap.Map[netip.Addr, *balancer.VIP]
	Pools snap.Map[balancer.Name, *balancer.Pool]
	// Nodes holds the live nodes of the fleet, including this node.
	Nodes snap.Map[balancer.NodeName, *balancer.Node]
	// Problems lists the mistakes in the definitions. Objects with mistakes either are missing from
	// the maps or keep their last good state.
	Problems []balancer.Problem
	// Retained lists the names of services that keep their last good state because of an error.
	// Vanished lists the services among them that have no definition. The error may hide their
	// definitions.
	Retained, Vanished []balancer.Name
	// Revision increases with each change to the state. A store with its own revisions uses them.
	Revision int64
	// Connected reports whether the place can be read. If not, Err is the reason, and the snapshot
	// holds the last good state. This state is empty if the place was never read and no state was
	// saved.
	Connected bool
	Err       error
	// Began is when the source noticed the first change since the last snapshot. It is zero if that
	// is unknown.
	Began time.Time
	// Settings holds the content of the source's file other than services and address settings, for
	// the program that follows the source. It is nil if the source has no file. Its pointer changes
	// only if the settings or their lines change. A file that can't be read or parsed does not
	// change it.
	Settings Document
	// Pending lists the changes in this state that will be reverted unless they are confirmed.
	Pending []*Pending
	// Kept reports whether the snapshot holds a state that an earlier process saved, because the
	// place could not be read since the source started.
	Kept bool
	// Local is the state of the node's own source, if the snapshot is from [Joined]. Otherwise it
	// is nil.
	Local *LocalState
}

// LocalState describes the snapshot of a node's own source in a combined snapshot. The fields have
// the same meaning as in Snapshot.
type LocalState struct {
	Revision  int64
	Connected bool
	Err       error
}

// Document is the content of a file, with the line of each part. It is immutable.
type Document interface {
	// File is the file's name. Folder is the base of relative paths in the file.
	File() string
	Folder() string
	// Tree is the content, in the form that decode.Into accepts. The caller must not modify it.
	Tree() map[string]any
	// Where returns the file and line of a path such as etcd.endpoints[2], or of its nearest
	// parent.
	Where(path string) balancer.Origin
}
