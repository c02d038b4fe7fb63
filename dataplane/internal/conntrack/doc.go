// Package conntrack reads and deletes the kernel's connection tracking entries over netlink. The
// kernel decides a flow's destination at its first packet, and never changes it. So flows to a
// removed backend continue until they are deleted here.
//
//	conn, err := conntrack.Open()
//	defer conn.Close()
//	n, err := conn.Cut(ctx, map[balancer.Key]bool{dns: true}, func(f *conntrack.Flow) bool {
//		return f.Backend() == gone
//	})
//
// Conn lists and deletes flows; Ends reports ended flows with their bytes. Lists are streamed, so a
// call's memory use does not grow with the table. Nearly all of the time, about 2 us per flow, is
// spent in the kernel. The package uses the kernel's searches if possible, but compares every flow
// again. Kernels before 5.8 search only by family. Kernels up to at least 6.18 return wrong results
// for IPv6 addresses, and ignore SCTP ports.
//
// Unanswered reports connections that backends refuse or do not answer, as far as conntrack shows
// this.
//
// The package handles all flows of TCP, UDP and SCTP, including flows without a frontend. The
// caller selects the relevant flows. The package never creates or changes flows.
package conntrack
