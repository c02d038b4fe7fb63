// Package ipvs forwards frontends with virtual servers of the kernel's IPVS. Its tables are hash
// tables, so the cost of a packet or a change does not depend on the number of services.
//
//	client -> mangle PREROUTING -> routing: the VIP is local -> mangle, filter INPUT -> IPVS -> OUTPUT, POSTROUTING -> endpoint
//	endpoint -> FORWARD, where IPVS puts the VIP back -> POSTROUTING -> client
//
// A frontend is a virtual server, and a backend is a destination (render.go). The wanted state is
// compared with the known state of the kernel (server.go), and only the differences are sent, in
// few system calls. Creation precedes removal (apply.go). If an answer shows a different state, the
// virtual server is read, and the change is repeated.
//
// # Ranges of ports
//
// A frontend with a port range is a virtual server with a firewall mark (ipvsnl.Mark). In the
// kernel its destinations have port 0, which preserves the client's port. In this package they have
// the first port of the range. The nf_tables table vipd-ipvs-ranges gives packets the mark of the
// range that has their port open (ranges.go). IPVS prefers marks to addresses, so the open parts of
// a range exclude narrower frontends. Only packets from clients get the mark, because an answer to
// a program on this host may also arrive at such a port. The mark is set immediately before IPVS,
// and cleared before any other rule sees the packet, because other programs test bits of marks.
//
// # Ownership of virtual servers
//
// The kernel can't store an owner with a virtual server, so a ledger in run_dir names vipd's
// virtual servers (ledger.go). The ledger is written before a virtual server is created. All other
// virtual servers belong to other programs and are never changed, even if their settings equal a
// frontend's settings. The creator may need the virtual server, but vipd would delete it later. The
// frontend then fails, and the error names the command that removes the foreign virtual server. The
// frontends also fail if the ledger was deleted while virtual servers existed. A reboot deletes
// both.
//
// # Drains
//
// A backend without new connections immediately gets weight 0. Its destination is deleted when its
// last connection ends, when Backend.Until has passed, or when the frontend no longer has the
// backend. The kernel then ends the remaining connections, because package host sets
// net.ipv4.vs.expire_nodest_conn (drains.go). If a backend without new connections has no
// destination, vipd does not create one for it. If a backend is restored, a single message restores
// its weight, and its connections continue. A removed frontend drains for its drain timeout, which
// the ledger passes to the next process. UDP does not drain, because a flow's next packet is sent
// to another destination. Clients with affinity are not sent to draining destinations, because
// package host sets net.ipv4.vs.expire_quiescent_template.
//
// Flows that would bypass a virtual server because of conntrack are removed, and a previous mode's
// connections are counted (dnat.Carried). vipd finds unanswered connections through conntrack
// (suspect_linux.go).
//
// # The kernel's schedulers
//
// Schedulers have the same names in the kernel, except for random, which becomes wrr. sh and mh use
// the client's address without its port. Both have the fallback flag, because otherwise clients
// whose hash selects a draining or full destination would be refused. dh does not have this flag,
// so while an endpoint drains, vipd uses fo, which also sends all clients of a VIP to one
// destination. The table of sh has 256 buckets, and weights are reduced to fit. With more than 256
// endpoints, some get no connections. mh does not have this limit.
//
// MaxConnections becomes a destination's upper and lower threshold, so a closed connection
// immediately makes room. The kernel continues to count closing connections for two minutes.
//
// # Counters
//
// vipd derives the numbers of connections and bytes from the destinations' counters. Before it
// deletes a destination, it adds these counters to its own, so totals never decrease (counts.go).
// The kernel updates its counters every two seconds, so a deleted destination's last counts appear
// only if it is restored.
//
// This package does not handle addresses, source ranges, refusals, masquerading and sysctls, which
// belong to vipd/dataplane/host and vipd/dataplane/guard. A frontend without backends has no
// virtual server: the guard answers its clients.
package ipvs
