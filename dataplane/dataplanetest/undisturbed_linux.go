package dataplanetest

import (
	"fmt"

	"vipd/balancer"
	"vipd/test/wait"
)

// testUndisturbed changes other services, ports and endpoints hundreds of times while connections
// carry data. No connection may be disturbed. A removed port must refuse clients, although its
// VIP's other ports are still served.
func testUndisturbed(r *rig) {
	const atATime = 10
	changes := max(4*atATime, wait.Soak(100, 1000))
	web := newService("web", r.w.vip, endpoints(r.w.servers[0])...)
	neighbour := newService("neighbour", r.w.vip, endpoints(r.w.servers...)...)
	for i := range neighbour.Ports {
		neighbour.Ports[i].Port = 82
	}
	r.apply(web, neighbour)
	pulses := startPulses(r, r.w.vip)
	h := newHistory(5, r.w.servers, 100, 8, web)
	h.ranges = r.caps.MaxPorts > 0
	for i := 1; i <= changes; i++ {
		h.next()
		services := h.wanted()
		if i%7 < 4 {
			services = append(services, neighbour)
		}
		if revision := r.set(services...); i%atATime == 0 {
			if err := r.wait(revision); err != nil {
				r.Fatalf("error after %d changes = %v, want nil", i, err)
			}
		}
	}
	checkUndisturbed(r, pulses, fmt.Sprintf("%d changes", changes))
	checkAllServe(r, 1)
	r.apply(h.wanted()...)
	for _, k := range keysOf(r.w.vip, balancer.TCP, balancer.UDP) {
		r.refused(r.w.client, keyOf(k.Addr, 82, k.Proto))
		r.mustAsk(r.w.client, k)
	}
}
