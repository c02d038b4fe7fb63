package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// testUnanswered drops one server's answers, as if the server had no route back. Only connections
// to this server must count as failures.
func testUnanswered(r *rig) {
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	web.Scheduler, web.Ports, web.ConnectTimeout = balancer.RoundRobin, web.Ports[:1], wait.Scaled(300*time.Millisecond)
	r.apply(web)
	watchUnanswered(r)
	silent := r.w.servers[0]
	r.eachOf(balancer.TCP, func(r *rig, key balancer.Key) {
		tool := map[bool]string{true: "iptables", false: "ip6tables"}[key.Addr.Is4()]
		rule := []string{"OUTPUT", "-p", "tcp", "--sport", fmt.Sprint(targetPort), "-j", "DROP"}
		silent.ns.Exec(tool, append([]string{"-I"}, rule...)...)
		defer silent.ns.Exec(tool, append([]string{"-D"}, rule...)...)
		at := netip.AddrPortFrom(silent.addr.inFamilyOf(key.Addr), targetPort)
		lab.Eventually(r, settleTime, "a counted failure", func() error {
			for range len(r.w.servers) {
				_, _ = r.askFrom(r.w.client, netip.Addr{}, key, silence) // the silent server does not answer some of these requests
			}
			if n := countAt(r, at); n.Failures == 0 {
				return errors.New("no failure is counted")
			}
			return nil
		})
		for _, s := range r.w.servers[1:] {
			n := countAt(r, netip.AddrPortFrom(s.addr.inFamilyOf(key.Addr), targetPort))
			if n.Failures != 0 || n.Connections == 0 {
				r.Errorf("failures of %s, a server that answers, = %d of %d connections, want 0 of at least 1", s.name, n.Failures, n.Connections)
			}
		}
	})
}

// watchUnanswered makes the dataplane detect unanswered connections until the test ends.
func watchUnanswered(r *rig) {
	d, watches := dataplane.As[dataplane.WatchesUnanswered](r.dp)
	if !watches { // this dataplane opens connections itself, and counts failures itself
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.WatchUnanswered(ctx, false, func(dataplane.FailedConnect) {}) }()
	r.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.Errorf("watching for unanswered connections: %v", err)
		}
	})
}

// countAt returns the numbers of a backend's connections and failures, summed over all frontends.
func countAt(r *rig, at netip.AddrPort) (n dataplane.BackendCount) {
	for _, f := range r.dp.Counters() {
		for _, b := range f.Backends {
			if b.Backend == at {
				n.Connections, n.Failures = n.Connections+b.Connections, n.Failures+b.Failures
			}
		}
	}
	return n
}
