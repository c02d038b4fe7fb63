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
	// Watch publishes the state after each change until ctx ends, and returns nil then. Each
	// snapshot is complete, including the first. Changes that arrive within a short time are
	// published together. publish is never called concurrently, and must not block. An error means
	// that this source can't continue at all. Anything that may pass (a missing file, a lost
	// connection, a syntax error) is a problem in the snapshot.
	Watch(ctx context.Context, publish func(Snapshot)) error
}

// Snapshot is the complete state of a source. Equal values keep their old pointer from one snapshot
// to the next.
type Snapshot struct {
	Services  snap.Map[balancer.Name, *balancer.Service]
	Endpoints snap.Map[balancer.EndpointID, *balancer.Endpoint]
	Overrides snap.Map[balancer.Target, *balancer.Override]
	// VIPs are the settings of addresses, and Pools the settings of the addresses of pools.
	VIPs  snap.Map[netip.Addr, *balancer.VIP]
	Pools snap.Map[balancer.Name, *balancer.Pool]
	// Nodes are the live nodes of the fleet, this node included.
	Nodes snap.Map[balancer.NodeName, *balancer.Node]
	// Problems are the mistakes in the definitions. Their objects are missing in the maps, or have
	// their last good state.
	Problems []balancer.Problem
	// Retained are the services that keep their last good state because their definition has an
	// error, by name. Vanished are those without any definition: the error may hide it.
	Retained, Vanished []balancer.Name
	// Revision increases with each state that differs from the last one. A store with revisions
	// uses its own.
	Revision int64
	// Connected is false while the place can't be read; Err is the reason. The snapshot then has
	// the last good state, or nothing if the place was never read since the source started.
	Connected bool
	Err       error
	// Began is the time when the source noticed the first change since the last snapshot; zero
	// means unknown.
	Began time.Time
	// Settings are the other settings in the source's file, for the program that follows it; nil
	// for a source without a file. They keep their pointer while they and their lines are equal. A
	// file that can't be read, or is not a valid document, leaves them unchanged.
	Settings Document
	// Kept reports whether the place could not be read since the source started, but its former
	// state is known.
	Kept bool
}

// Document is the content of a file, with the place of each part. It never changes.
type Document interface {
	// File is the name of the file, and Folder the base of its relative paths.
	File() string
	Folder() string
	// Tree is the content, in the form that decode.Into accepts. It is shared: don't change it.
	Tree() map[string]any
	// Where returns the place of a path such as etcd.endpoints[2], or of its nearest parent.
	Where(path string) balancer.Origin
}
