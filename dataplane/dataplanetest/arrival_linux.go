package dataplanetest

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// knocking has a client connect to a VIP all the time, over TCP.
type knocking struct {
	stop             func()
	mu               sync.Mutex // guards the rest
	served, refusals int
}

// startKnocking starts to connect to a VIP that may not exist yet.
func startKnocking(r *rig, vip netip.Addr) *knocking {
	k := &knocking{}
	k.stop = repeatedly(r, time.Millisecond, func() {
		c, err := r.open(r.w.client, netip.Addr{}, keyOf(vip, vipPort, balancer.TCP), unanswered)
		k.mu.Lock()
		defer k.mu.Unlock()
		if err == nil {
			_ = c.Close()
			k.served++
		} else if errors.Is(err, unix.ECONNREFUSED) {
			k.refusals++
		}
	})
	return k
}

// letIn waits until the client is served, and checks that it was never refused.
func (k *knocking) letIn(r *rig, when string) {
	r.Helper()
	lab.Eventually(r, atOnce, "serving a client "+when, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.served == 0 {
			return fmt.Errorf("no connection yet")
		}
		return nil
	})
	k.stop()
	if k.refusals > 0 {
		r.Errorf("%s a client was refused %d times before it was served, want silence: clients try again after that", when, k.refusals)
	}
}

// testArrival sends requests to VIPs before they exist, when the dataplane starts and with a new
// service. Clients get no answer until the VIP serves.
func testArrival(t *testing.T, s *Subject) {
	r := newStill(t, s, routed(t, lab.New(t)))
	r.prepare(wait.Scaled(driverProbe))
	r.endDriven()
	services := []*balancer.Service{newService("web", r.w.vip, endpoints(r.w.servers...)...)}
	for i := range wait.Load(30) {
		services = append(services, newService(balancer.Name(fmt.Sprint("other", i)), vipN(100+i), endpoints(r.w.servers...)...))
	}
	knocking4, knocking6 := startKnocking(r, r.w.vip[0]), startKnocking(r, r.w.vip[1])
	r.set(services...)
	r.start()
	knocking4.letIn(r, "at the start")
	knocking6.letIn(r, "at the start")
	if err := r.wait(r.set(services...)); err != nil {
		r.Fatal(err)
	}
	knocking4, knocking6 = startKnocking(r, vipN(30)[0]), startKnocking(r, vipN(30)[1])
	r.apply(append(services, newService("new", vipN(30), endpoints(r.w.servers...)...))...)
	knocking4.letIn(r, "with a new service")
	knocking6.letIn(r, "with a new service")
}
