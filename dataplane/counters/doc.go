// Package counters keeps the kernel's counts of removed objects. Otherwise sums would decrease,
// because a rewritten chain and a restored destination start at 0.
//
// Sums drops old keys. Otherwise a host with changing endpoints would keep the counts of all former
// endpoints. The count of a dropped endpoint is added to its service, and is kept as long as the
// service.
package counters
