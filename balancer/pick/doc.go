// Package pick chooses the backend of a new connection: the schedulers of services, and the sticky table of client
// affinity. The userspace dataplane runs on it, and the kernel's modes are measured against it.
//
//	p := pick.New(f.Scheduler, f.Backends, load)             one picker per generation of a frontend's backends
//	i := p.Pick(pick.Flow{Client: client, VIP: vip}, nil)    an index into f.Backends, or -1
//	p = pick.Next(p, g.Scheduler, g.Backends, load)          the next generation goes on where this one was
//
// Affinity comes first: a caller looks the client up in Sticky, picks only where it finds nothing usable, and stores
// what it used either way. The package has no clock, starts no goroutines and knows nothing of health: it takes what Compile
// says of State and Weight.
//
// # Schedulers
//
// Members are the backends that are Active with a weight above 0, in the order of their addresses.
//
//   - rr takes them in turn; weights do not count. As in ip_vs_rr.c.
//   - wrr is smooth weighted round robin as nginx does it (ngx_http_upstream_round_robin.c): exact over a cycle of
//     sum(weights)/gcd picks, with the turns of each member spread over the cycle. The kernel's (ip_vs_wrr.c) has the
//     same shares, but gives the heaviest its turns in runs.
//   - random draws by weight, each time anew. The kernel has nothing like it.
//   - lc takes the fewest connections; weights do not count. ip_vs_lc.c counts 256 for an active connection and 1 for
//     one that is ending, and takes the first of equals: here all of load counts alike, and equals take turns, in wlc,
//     sed and nq too.
//   - wlc takes the least connections per weight, as ip_vs_wlc.c does with what it counts for lc.
//   - sed takes the shortest expected delay, (connections + 1) / weight, as in ip_vs_sed.c.
//   - nq takes an idle one if there is one, else does as sed, as in ip_vs_nq.c.
//   - sh keeps each client address on one backend by weighted rendezvous hashing (Thaler and Ravishankar, "Using
//     name-based mappings to increase hit rates", 1998; the weights by an exponential race). A pick looks at every
//     member. ip_vs_sh.c deals 256 buckets out by weight: coarser, and most clients move when a backend comes or goes;
//     here only those of that backend do.
//   - dh does the same by the virtual address, which gives a frontend of one address one backend. ip_vs_dh.c has
//     buckets as above, without weights.
//   - mh is Maglev hashing (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", 2016) of
//     the client address, with 65537 slots. A pick is a look into the table; a change moves a few clients of other
//     backends too. ip_vs_mh.c takes 4093 slots by default, another hash, and hands slots out by weight in a similar
//     way: the shares are the same, the choices of each client are not.
//
// The hashes (FNV-1a with the finalizer of splitmix64) have no seed: nodes of a fleet, whatever their architecture,
// choose alike, and so does a process after a restart. A client that knows them can choose addresses that meet on one
// backend, as with the kernel's.
package pick
