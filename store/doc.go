// Package store defines the contract of a source of services, and the parts that all sources share.
//
// A source watches one place, such as etcd, a TOML file or a folder. It publishes complete
// snapshots instead of events. Publishing a snapshot is cheap, because it shares all unchanged
// values with the previous snapshot. A reader compares its last snapshot with the newest, even if
// it has missed snapshots in between. A source that can't read its place keeps its last good state,
// and sets Connected to false.
//
// To add a source, add a folder next to the others, add the source to the daemon, and run the suite
// in storetest.
package store
