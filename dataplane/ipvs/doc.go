// Package ipvs forwards frontends with virtual servers of the kernel's IPVS. Its tables are hashes,
// so the cost of a packet and of a change does not depend on the number of services.
//
//	client -> mangle PREROUTING -> routing: the VIP is local -> mangle, filter INPUT -> IPVS -> OUTPUT, POSTROUTING -> endpoint
//	endpoint -> FORWARD, where IPVS puts the VIP back -> POSTROUTING -> client
//
// A frontend is a virtual server, and a backend is a destination (render.go). A change is compared
// with the known state of the kernel (server.go), and only the messages that differ are sent, in
// few system calls: creation precedes removal (apply.go). If an answer shows a different state, the
// virtual server is read, and the change is repeated.
//
// # Ranges of ports
//
// A frontend with a range of ports is a virtual server with a firewall mark (ipvsnl.Mark), whose
// destinations have port 0 and so keep the client's port. Here, destinations have the first port of
// the range. The table vipd-ipvs-ranges of nf_tables gives packets the mark of the range that has
// their port open (ranges.go). IPVS prefers marks to addresses, so the open parts of a range
// exclude narrower frontends. Only packets from clients get the mark, because an answer to a
// program of this host may also arrive at such a port. The mark is set immediately before IPVS, and
// cleared before any rule sees the packet again, because other programs test bits of marks.
//
// # Ownership of virtual servers
//
// The kernel can't store a mark on a virtual server, so a ledger in the run folder names ours
// (ledger.go). It is written before a virtual server is created. A virtual server that it does not
// name belongs to another program and is never changed, even if it has the settings of a frontend:
// its creator may need it, and vipd would delete it later. The frontend then fails, and the error
// names the command that removes the foreign virtual server. The same happens if the ledger was
// deleted while virtual servers existed. A reboot empties both.
//
// # Drains
//
// A backend without new connections immediately gets weight 0. Its destination is deleted when its
// last connection ends, when Backend.Until has passed, or when the frontend no longer has the
// backend. The kernel then ends the remaining connections, because package host sets
// net.ipv4.vs.expire_nodest_conn (drains.go). If a backend without new connections has no
// destination, vipd does not create one for it. If a backend is restored, a single message restores
// its weight, and it keeps its connections. A removed frontend drains with its drain timeout, which
// the ledger passes to the next process. UDP does not drain, because the next packet of a flow is
// sent to another destination. Clients with affinity are not sent to draining destinations, because
// package host sets net.ipv4.vs.expire_quiescent_template.
//
// Flows that conntrack would still send past a virtual server are removed, and the connections of a
// previous mode are counted (dnat.Carried). conntrack shows connections without an answer
// (suspect_linux.go).
//
// # The kernel's schedulers
//
// Schedulers keep their names, except for random, which is wrr. sh and mh use the client's address
// without its port. Both have the fallback flag, because otherwise clients whose hash selects a
// draining or full destination would be refused. dh has no such flag, so while an endpoint drains,
// vipd uses fo, which also sends all clients of a VIP to one destination. The table of sh has 256
// buckets, and weights are reduced to fit. With more than 256 endpoints, some get no connections.
// mh has no such limit.
//
// MaxConnections is the upper and the lower threshold of a destination, so an ended connection
// immediately makes room. The kernel also counts closing connections, for two minutes.
//
// # Counters
//
// vipd derives its counts of connections and bytes from the counters of destinations. Before it
// deletes a destination, it adds the counters to its own, so totals never decrease (counts.go). The
// kernel updates its counters every two seconds, so the last counts of a deleted destination only
// appear if it is restored.
//
// This package does not handle addresses, source ranges, refusals, masquerading and sysctls, which
// belong to vipd/dataplane/host and vipd/dataplane/guard. A frontend without backends has no
// virtual server: the guard answers its clients.
package ipvs
