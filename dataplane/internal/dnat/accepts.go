package dnat

import (
	"sync"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
)

// accepting counts, by port, the sockets of this process that redirects lead connections to. Modes that serve beside each other, while one
// takes the place of the other, know by it whose a connection is.
var accepting = struct {
	sync.Mutex
	ports map[uint16]int
}{ports: map[uint16]int{}}

// Accepts notes that a mode which ends connections itself accepts those that are redirected to a port, until ended is called: they are
// its own to end, and no other mode's Flows drop them.
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

// isAccepted reports whether a flow is a connection that this process has accepted. Clients of UDP go on sending, and belong to the mode
// that has come last.
func isAccepted(flow *conntrack.Flow) bool {
	if flow.Proto == balancer.UDP || !flow.Status.Has(conntrack.DstNAT) {
		return false
	}
	accepting.Lock()
	defer accepting.Unlock()
	return accepting.ports[flow.Backend().Port()] > 0
}
