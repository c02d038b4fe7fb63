// Package definitions writes services and what belongs to them. Each service is one transaction
// with its place in the history. A Plan judges changes together and writes them one by one.
//
// # Addresses from pools
//
// Where the vips of a service say "auto", Writer.Apply puts an address of the pool named default
// ("auto:POOL": of POOL) into vips/, in the transaction that writes the service, on the condition
// that it is free. The service's text keeps "auto", and Source joins the two
// (balancer.Service.Allocated). An address stays with its service while that asks for it, however
// often it is applied, and is given back in the transaction in which it no longer does. Where to
// begin looking in a pool follows from the service's name, so that those who apply at the same time
// seldom meet; who loses looks again. What other services name in their own texts is not given
// away, as far as it was there when the texts were read.
//
// # Claims
//
// No two services may come to claim one address, port and protocol, or one node port, and a
// transaction can't look at all texts. So a transaction that brings about a claim writes
// claims/all, on the condition that no other has written below claims/ since the texts were read
// (Change.Checked). A writer that was overtaken gets a StaleError, and reads again. Other programs
// don't write there: if two services claim the same, the hosts serve the one that had it first.
//
// What it does not do: it does not follow etcd.
package definitions
