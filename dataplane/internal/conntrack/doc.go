// Package conntrack reads and cuts the kernel's memory of connections, by netlink. The kernel decides once per flow where
// that goes, at its first packet, and remembers: flows to a backend that is gone stay on their way until they are deleted
// here.
//
//	conn, err := conntrack.Open()
//	defer conn.Close()
//	n, err := conn.Cut(ctx, map[balancer.Key]bool{dns: true}, func(f *conntrack.Flow) bool {
//		return f.Backend() == gone
//	})
//
// Conn lists and deletes, Ends tells which flows end, with the bytes that they carried. Lists are streamed: what a call
// needs does not grow with the table, and nearly all of its time, about 2 us a flow, is the kernel's. Where the kernel can
// search, it does, and every flow is compared again here, because kernels differ in what they search by: before 5.8 by the
// family only, up to 6.18 at least wrongly by IPv6 addresses, and not by SCTP ports.
//
// Unanswered reports connections that backends refuse or leave without an answer, as far as conntrack shows it.
//
// Only flows of TCP, UDP and SCTP are seen, with those that have nothing to do with any frontend: which are of interest
// is the caller's to say. Nothing is created or changed.
package conntrack
