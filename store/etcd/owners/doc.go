// Package owners has the records of which host owns which VIP. Ownership registers a host, follows
// all records and writes, for the protocol in balancer/failover. Admin reads the records for
// operators, and asks owners to move a VIP.
//
// Nothing that was reported holds once etcd has another history, because it was restored or wiped:
// Ownership ends with [client.ErrAnother], and its host begins as after a start.
//
// What it does not do: it does not decide who owns a VIP.
package owners
