package dnat

import (
	"sync"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
)

// accepting counts this process's sockets to which redirects lead, by port. While a mode replaces
// another mode, both serve, and this distinguishes their connections.
var accepting = struct {
	sync.Mutex
	ports map[uint16]int
}{ports: map[uint16]int{}}

// Accepts records that a mode which terminates connections itself accepts redirected connections at
// a port, until ended is called. No other mode's [Flows] then removes these connections.
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

// isAccepted reports whether this process has accepted the flow's connection. UDP clients continue
// to send, and belong to the mode that started last.
func isAccepted(flow *conntrack.Flow) bool {
	if flow.Proto == balancer.UDP || !flow.Status.Has(conntrack.DstNAT) {
		return false
	}
	accepting.Lock()
	defer accepting.Unlock()
	return accepting.ports[flow.Backend().Port()] > 0
}
