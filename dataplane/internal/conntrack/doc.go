// Package conntrack reads and deletes entries of the kernel's connection tracking, by netlink. The
// kernel decides the destination of a flow at its first packet, and remembers it: flows to a
// removed backend stay until they are deleted here.
//
//	conn, err := conntrack.Open()
//	defer conn.Close()
//	n, err := conn.Cut(ctx, map[balancer.Key]bool{dns: true}, func(f *conntrack.Flow) bool {
//		return f.Backend() == gone
//	})
//
// Conn lists and deletes flows; Ends reports ended flows with their bytes. Lists are streamed, so
// the memory of a call does not grow with the table. Nearly all of its time, about 2 us per flow,
// is spent in the kernel. If the kernel can search, it does. Every flow is compared again here
// because kernels differ: before 5.8 they search only by family, and up to 6.18 or later they
// search wrongly by IPv6 addresses, and not by SCTP ports.
//
// Unanswered reports connections that backends refuse or do not answer, as far as conntrack shows
// them.
//
// The package handles all flows of TCP, UDP and SCTP, including those without a frontend. The
// caller selects the relevant flows. It never creates or changes flows.
package conntrack
