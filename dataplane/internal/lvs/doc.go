// Package lvs speaks with the kernel's IPVS: virtual servers, their destinations, counters and connections.
//
//	conn, err := lvs.Open(ctx, log)
//	defer conn.Close()
//	errs := conn.Do(ctx, []lvs.Op{
//		{Verb: lvs.AddService, Service: lvs.Service{Key: web, Scheduler: "wrr"}},
//		{Verb: lvs.AddDestination, Service: lvs.Service{Key: web}, Destination: lvs.Destination{Addr: endpoint, Forward: balancer.NATForward, Weight: 1}},
//	})
//
// The kernel is asked to change what an Op says and nothing besides: what is there already, or is not there, is an
// error of that Op. Nothing is remembered here, and no virtual server is anybody's: whose it is, is for callers to
// know.
package lvs
