// Package watch is the source of services in etcd, which daemons follow.
//
// A change passes through Source as follows:
//
//	etcd  ->  link: reads all at one revision, then watches from the next  ->  state: decode, last good  ->  publish
//
// One goroutine owns the state. A key that can't be decoded is a problem of its service, and its
// last good value stays; an unknown field is a warning. The first read publishes the state of one
// revision. Afterwards each folder is followed separately, so parts of a transaction over several
// folders may be visible for some milliseconds. Equal values keep their pointers, and changes that
// arrive within milliseconds are published together. A file keeps the last good values, which are
// served until etcd answers.
//
// # Endpoints that vanish together
//
// If the leases of a service's last endpoints end, and its own text has no endpoints, the
// registrars have probably lost etcd. It is less likely that every server died. So all endpoints
// that vanished within the last half minute stay in use, with a warning. They stay until the
// service is deleted, until it gets its own endpoints, or until an endpoint is registered again;
// the others then have half a minute to return. An intended removal is immediate: the key was
// deleted while its lease lived, had no lease, or contained draining or weight 0.
//
// # An etcd that was wiped
//
// [client.Link] notices that etcd has another history, even after a restart, because the file has
// the former history. If the new history lacks services, the former state stays in use and in the
// file, with a problem. The new history is followed. It replaces the former state when it has
// services and none was added for half a minute. A service that is removed in the followed history
// is removed at once.
//
// The package does not decide whether a service may have the addresses that it requests.
package watch
