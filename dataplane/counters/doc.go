// Package counters remembers the kernel's counts of removed objects. Without it, totals would
// decrease, because a rewritten chain and a restored destination start at 0.
//
// Sums drops old keys, so a host with changing endpoints does not remember every endpoint that it
// ever had. A dropped endpoint's count is added to its service, and remains as long as the service.
package counters
