// Package watch is the source of services in etcd, which daemons follow.
//
// A change passes through Source as follows:
//
//	etcd  ->  link: reads all at one revision, then watches from the next  ->  state: decode, last good  ->  publish
//
// One goroutine owns the state. If a key can't be decoded, its service has a problem, and the last
// good value stays in use. An unknown field is a warning. The first read publishes the state of a
// single revision. Afterwards each folder is followed separately, so a transaction over several
// folders may be visible only in part for several milliseconds. Equal values keep their pointers,
// and changes that arrive within milliseconds are published together. A file holds the last good
// values, which are served until etcd answers.
//
// # Endpoints that vanish together
//
// If the leases of a service's last endpoints end, and its own text has no endpoints, the
// registrars have probably lost etcd. It is less likely that all servers have failed. So all
// endpoints that vanished within the last half minute stay in use, with a warning. They stay until
// the service is deleted, gets its own endpoints, or an endpoint is registered again. In the last
// case, the others have half a minute to return. An intended removal is immediate. A removal is
// intended if the key was deleted while its lease was live, had no lease, or contained draining or
// weight 0.
//
// # An etcd that was wiped
//
// [client.Link] detects that etcd has another history, even after a restart, because the file
// contains the former history. If services are missing from the new history, the former state stays
// in use and in the file, with a problem. The new history is followed. It replaces the former state
// once it has services and none was added for half a minute. While the history continues, a removed
// service is removed immediately.
//
// The package does not decide whether a service may have the requested addresses.
package watch
