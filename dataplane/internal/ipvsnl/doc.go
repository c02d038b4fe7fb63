// Package ipvsnl reads and changes the kernel's IPVS: virtual servers, their destinations, counters
// and connections.
//
//	conn, err := ipvsnl.Open(ctx, log)
//	defer conn.Close()
//	errs := conn.Do(ctx, []ipvsnl.Op{
//		{Verb: ipvsnl.AddService, Service: ipvsnl.Service{Key: web, Scheduler: "wrr"}},
//		{Verb: ipvsnl.AddDestination, Service: ipvsnl.Service{Key: web}, Destination: ipvsnl.Destination{Addr: endpoint, Forward: balancer.NATForward, Weight: 1}},
//	})
//
// The kernel makes exactly the change that an Op describes. Adding an existing object or changing a
// missing object makes that Op fail. This package keeps no state, and does not record who created a
// virtual server.
//
// # Messages
//
// The timeouts use github.com/moby/ipvs. Everything else uses this package's own messages, because
// the library does not support these features:
//
//   - Changes are sent in groups of 128. The kernel answers only refused messages and the last
//     message. So each change has its own error, and costs a twentieth of a separate message.
//   - Counters and weights have their full size of 64 and 32 bits. The library reads only 32 and 16
//     bits.
//   - A destination has an address family, which tunnels between the families need.
//   - A list that overflowed the buffer is read again. The library returns incomplete lists.
//   - The existence of a scheduler is tested without creating an object.
//   - A request times out after ten seconds, or when the caller's context is done. The library's
//     handles wait forever, and so do goroutines that share a handle. See [Client].
//   - The number of virtual servers comes from a socket option, because no message contains it.
//
// Whole tables are read from /proc/net/ip_vs. For 2,000 virtual servers with ten destinations each,
// this takes a tenth of the time that one message for each virtual server would take. The file does
// not contain thresholds (see Destinations), or flags other than persistence (see Services).
//
// # Kernel behavior
//
// The kernel updates its counters every two seconds. Changing the scheduler of a virtual server
// takes about ten milliseconds. When a destination is added, the kernel searches for it among all
// destinations that were deleted in the last minute. So additions are slow after many deletions.
package ipvsnl
