package owner

import (
	"sync"

	"vipd/balancer/failover/local"
	"vipd/balancer/lib/wake"
	onhost "vipd/dataplane/failover"
)

// cover is an action that changes the VIPs and devices that the gate covers.
type cover struct{ places onhost.Places }

// unbinds is a series of consecutive local.Unbind actions.
type unbinds []local.Unbind

// maxUnbound is the maximum number of VIPs that are removed together. A VIP that moves to another
// host is silent until all VIPs of the series have been removed.
const maxUnbound = 100

// queue holds the actions for the kernel. It has no size limit: the loop adds actions and must not
// wait for the worker, because the worker waits for the loop.
type queue struct {
	wake wake.Signal
	mu   sync.Mutex // guards all
	all  []any      // actions, and covers
}

func (q *queue) add(a any) {
	q.mu.Lock()
	q.all = append(q.all, a)
	q.mu.Unlock()
	q.wake.Send()
}

// next removes and returns the first action, or returns nil if the queue is empty. If the first
// actions are local.Unbind actions, it returns them together as unbinds.
func (q *queue) next() (first any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var together unbinds
	for vips := 0; len(together) < len(q.all) && vips < maxUnbound; {
		u, ok := q.all[len(together)].(local.Unbind)
		if !ok {
			break
		}
		together, vips = append(together, u), vips+len(u.Addrs)
	}
	switch {
	case len(together) > 0:
		first, q.all = together, q.all[len(together):]
	case len(q.all) > 0:
		first, q.all = q.all[0], q.all[1:]
	}
	if len(q.all) > 0 {
		q.wake.Send()
	}
	return first
}
