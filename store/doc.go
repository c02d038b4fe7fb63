// Package store is where services come from: the contract of a source, and what all sources share.
//
// A source watches one place (a TOML file or folder, etcd) and publishes complete snapshots. It
// never pushes events: a snapshot is the whole, cheap to publish because it shares all that did not
// change with the one before, and a reader that is behind compares. A source that can't read its
// place keeps its last good state and says so in Problems.
//
// A new source is a folder beside these, a line in the daemon, and a pass of the suite in
// storetest.
package store
