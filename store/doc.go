// Package store has the contract of a source of services, and the parts that all sources share.
//
// A source watches one place (a TOML file or folder, etcd) and publishes complete snapshots instead
// of events. A snapshot is cheap to publish because it shares all unchanged values with the
// previous snapshot, and a reader that is behind compares the two. A source that can't read its
// place keeps its last good state and reports that in Problems.
//
// A new source is a folder next to the others, a line in the daemon, and a pass of the suite in
// storetest.
package store
