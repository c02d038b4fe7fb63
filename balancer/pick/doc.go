// Package pick chooses the backend of a new connection: it implements the schedulers of services,
// and the sticky table of client affinity. The userspace dataplane uses the package, and tests
// compare the kernel's modes with it.
//
//	p := pick.New(f.Scheduler, f.Backends, load)             one picker per generation of a frontend's backends
//	i := p.Pick(pick.Flow{Client: client, VIP: vip}, nil)    an index into f.Backends, or -1
//	p = pick.Next(p, g.Scheduler, g.Backends, load)          the next generation continues with this one's state
//
// Affinity has priority: a caller first looks the client up in Sticky, calls Pick only if it finds
// no usable backend, and stores the backend that it uses. The package has no clock, starts no
// goroutines and does not consider health. It uses State and Weight of the compiled backends.
//
// # Schedulers
//
// Members are the Active backends with a weight above 0, in the order of their addresses.
//
//   - rr chooses them in turn and ignores weights, as in ip_vs_rr.c.
//   - wrr is smooth weighted round robin as in nginx (ngx_http_upstream_round_robin.c): exact over a cycle of sum(weights)/gcd picks,
//     with the turns of each member spread over the cycle. The kernel (ip_vs_wrr.c) has the same shares, but gives the heaviest member
//     its turns in runs.
//   - random draws by weight for each connection. The kernel has no such scheduler.
//   - lc chooses the member with the fewest connections and ignores weights. ip_vs_lc.c counts 256 for an active connection and 1 for an
//     ending one, and chooses the first of equals. Here every connection counts 1, and equals take turns, also in wlc, sed and nq.
//   - wlc chooses the fewest connections per weight, as in ip_vs_wlc.c.
//   - sed chooses the shortest expected delay, (connections + 1) / weight, as in ip_vs_sed.c.
//   - nq chooses an idle member if one exists, and otherwise as sed does, as in ip_vs_nq.c.
//   - sh keeps each client address on one backend by weighted rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to
//     increase hit rates", 1998; the weights by an exponential race). A pick visits every member. If a backend is added or removed, only
//     its own clients move. ip_vs_sh.c distributes 256 buckets by weight, which is coarser and moves most clients.
//   - dh does the same with the virtual address, so a frontend has one backend. ip_vs_dh.c has buckets as above, without weights.
//   - mh is Maglev hashing (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", 2016) of the client address,
//     with 65537 slots. A pick is a table lookup. A change also moves a few clients of other backends. ip_vs_mh.c has 4093 slots by
//     default, another hash, and a similar distribution of slots by weight: the shares are the same, the choice for a client is not.
//
// The hashes (FNV-1a with the finalizer of splitmix64) have no seed, so all nodes of a fleet make
// the same choice, on any architecture and after any restart. As with the kernel's hashes, an
// attacker can choose client addresses that share a backend.
package pick
