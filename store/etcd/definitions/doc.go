// Package definitions writes services and their parts. Each service is written in a transaction,
// together with its entry in the history. A Plan checks several changes together and writes them
// one by one.
//
// # Addresses from pools
//
// If the vips of a service contain "auto", Writer.Apply allocates an address from the pool named
// default ("auto:POOL" selects POOL). It writes the address to vips/ in the transaction that writes
// the service, on the condition that the address is free. The service's text keeps "auto", and
// Source combines both (balancer.Service.Allocated). An address stays with its service as long as
// the service requests it, even if the service is applied repeatedly. It is released in the
// transaction that ends the request. The search in a pool starts at a position that depends on the
// service's name, so concurrent writers rarely choose the same address. A writer whose address was
// allocated to another service searches again. Addresses that the texts of other services name are
// not allocated, if these texts were written before the search read them.
//
// # Claims
//
// Two services must not claim the same address, port and protocol, or the same node port, but a
// transaction can't check all texts. So a transaction that adds a claim writes claims/all, on the
// condition that no other writer has written below claims/ since the texts were read
// (Change.Checked). If the condition fails, the writer gets a StaleError and must read again. Other
// programs do not write there. If two services claim the same address nevertheless, the hosts serve
// the service that claimed it first.
//
// The package does not follow etcd.
package definitions
