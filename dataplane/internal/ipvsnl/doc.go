// Package ipvsnl speaks with the kernel's IPVS: virtual servers, their destinations, counters and connections.
//
//	conn, err := ipvsnl.Open(ctx, log)
//	defer conn.Close()
//	errs := conn.Do(ctx, []ipvsnl.Op{
//		{Verb: ipvsnl.AddService, Service: ipvsnl.Service{Key: web, Scheduler: "wrr"}},
//		{Verb: ipvsnl.AddDestination, Service: ipvsnl.Service{Key: web}, Destination: ipvsnl.Destination{Addr: endpoint, Forward: balancer.NATForward, Weight: 1}},
//	})
//
// The kernel is asked to change what an Op says and nothing besides: what is there already, or is not there, is an
// error of that Op. Nothing is remembered here, not even who made a virtual server: that is for callers to
// know.
//
// # How it is asked
//
// The timeouts are github.com/moby/ipvs's. The rest is our own messages, for what that library has not:
//
//   - Changes go 128 at once. The kernel answers the last, and what it refuses; so each has its own error, and one costs
//     a twentieth of what it costs alone.
//   - Counters are read with 64 bits, which 32 are too few for; so are weights, which the library cuts to 16.
//   - A destination's address family is told, without which tunnels can't lead from one to the other.
//   - Lists that were lost for want of room are read again. The library's are halves then.
//   - Whether there is a scheduler is asked in a way that makes nothing.
//   - An answer that does not come is waited for no longer than the caller does, and ten seconds: the library's handles
//     wait forever, and two goroutines at one do so, too. See Kernel.
//   - The number of virtual servers comes from a socket option, because no message tells it.
//
// Whole tables are read from /proc/net/ip_vs: for 2,000 virtual servers of ten destinations a tenth of the time that a
// message for each virtual server takes. It shows no thresholds, and no flag but persistence: Services has the flags,
// Destinations the thresholds.
//
// # What the kernel does
//
// Counters are what the kernel added up last, which it does each two seconds. Changing the scheduler of a virtual server
// takes some ten milliseconds. A destination that is added is looked for among all those deleted in the last minute, so
// deleting very many makes adding slow for that long.
package ipvsnl
