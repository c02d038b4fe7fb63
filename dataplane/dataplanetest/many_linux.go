package dataplanetest

import (
	"fmt"
	"time"

	"vipd/balancer"
	"vipd/test/wait"
)

// testMany adds hundreds of services in one change, removes them all, and adds some of them again.
// Every wanted service must be served. After the removal, no VIP may remain on the host.
func testMany(r *rig) {
	services := wait.Soak(150, 500)
	var all []*balancer.Service
	for i := range services {
		vip := parseAddrs(fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250), fmt.Sprintf("fd00:96::1:%x", 1+i))
		s := newService(balancer.Name(fmt.Sprint("many", i)), vip, endpoints(r.w.servers[i%len(r.w.servers)])...)
		s.DrainTimeout = 0 // removed services must not drain
		all = append(all, s)
	}
	for _, some := range [][]*balancer.Service{all, all[:max(services/10, 1)]} {
		began := time.Now()
		if err := r.wait(r.set(some...)); err != nil {
			r.Fatal(err)
		}
		r.Logf("added %d services in %v", len(some), time.Since(began).Round(time.Millisecond))
		checkAllServe(r, wait.Load(37))
		checkKernelState(r, "with many services")
		began = time.Now()
		if err := r.wait(r.set()); err != nil {
			r.Fatal(err)
		}
		r.Logf("removed them in %v", time.Since(began).Round(time.Millisecond))
		checkKernelState(r, "without services")
		if held := heldVIPs(r.T); len(held) > 0 {
			r.Errorf("VIPs left on the host = %d, want 0: %v", len(held), held)
		}
	}
}
