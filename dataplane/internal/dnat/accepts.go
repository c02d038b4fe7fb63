package dnat

import (
	"sync"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
)

// accepting counts, for each port, this process's sockets that accept redirected connections. While
// one mode replaces another, both serve clients, and the counts distinguish their connections.
var accepting = struct {
	sync.Mutex
	ports map[uint16]int
}{ports: map[uint16]int{}}

// Accepts records that this process accepts redirected connections at a port, for a mode that
// terminates connections. Until the caller calls ended, the [Flows] of other modes do not remove
// these connections.
func Accepts(port uint16) (ended func()) {
	accepting.Lock()
	defer accepting.Unlock()
	accepting.ports[port]++
	return sync.OnceFunc(func() {
		accepting.Lock()
		defer accepting.Unlock()
		if accepting.ports[port]--; accepting.ports[port] == 0 {
			delete(accepting.ports, port)
		}
	})
}

// isAccepted reports whether this process has accepted the flow's connection. It returns false for
// UDP, because clients continue to send, and their flows belong to the mode that started last.
func isAccepted(flow *conntrack.Flow) bool {
	if flow.Proto == balancer.UDP || !flow.Status.Has(conntrack.DstNAT) {
		return false
	}
	accepting.Lock()
	defer accepting.Unlock()
	return accepting.ports[flow.Reply.Src.Port()] > 0
}
