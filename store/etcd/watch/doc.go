// Package watch is the source of services in etcd, which daemons follow.
//
// How a change comes through Source:
//
//	etcd  ->  link: reads all at one revision, then watches from the next  ->  state: decode, last good  ->  publish
//
// The state belongs to one goroutine. A key that can't be decoded is a problem of its service, and
// its last good value stays; an unknown field is a warning. What is read as a whole is published as
// it was at that moment; afterwards the folders are followed side by side, and a transaction over
// several may be seen in parts for some milliseconds. Equal values keep their pointers, and changes
// that arrive within milliseconds are published together. The last good values are kept in a file,
// and served from there while etcd has not answered yet.
//
// # Endpoints that vanish together
//
// When the last endpoints of a service that has none in its own text end with their leases, it is
// more likely that the registrars lost etcd than that every server died. So all that ended within
// the last half minute stay in use, with a warning, until an endpoint is registered again (the
// others then have half a minute to come back), the service gets its own endpoints, or it is
// deleted. Who leaves on purpose says so: a key that was deleted while its lease lives, that had no
// lease, or that said draining or weight 0, is gone when it is gone.
//
// # An etcd that was wiped
//
// [client.Link] notices that etcd has another history, also after a restart, because the file has
// the former history. If the new history lacks services, the former state stays in use and in the
// file, with a problem. The new history is followed, and replaces the former state once it has
// services and none was added for half a minute. A service that is removed in the history that is
// followed is removed at once.
//
// What it does not do: it does not judge whether a service may have the addresses that it asks for.
package watch
