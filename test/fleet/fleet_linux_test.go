package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestFleet runs all cases on three vipds, in each mode that every kernel supports.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("needs half a minute, which is too long for -short")
	}
	lab.Require(t)
	bin := program.Bin(t)
	for _, mode := range []string{"iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, bin, 3)
			w.start(mode)
			w.readOnlyNode()
			w.foreignPorts()
			w.foreignAddresses()
			_, last := w.moves(20, 200*time.Millisecond)
			t.Logf("time from a put to its effect at every node = %s", last)
			wantWithin(t, "95 of 100 changes are in effect", kernelWithin, last.at(0.95))
			l := w.clients()
			if mode == "iptables" { // the path from etcd to the dataplane is the same in each mode
				w.changeFast(l)
				for _, f := range w.faults(3*time.Second, false) {
					w.survives(f, l)
				}
			}
			w.restartAll(mode, l)
			w.keepsSecret()
		})
	}
}

// readOnlyNode checks a vipd that may only read etcd. This vipd must serve like the other nodes,
// and report the missing permissions.
func (w *world) readOnlyNode() {
	w.t.Helper()
	for i, n := range w.nodes {
		n.await("its problems to be those of its rights", func(s status) bool {
			if i != readOnly {
				return len(s.Problems) == 0
			}
			return len(s.Problems) == 1 && strings.Contains(s.Problems[0].Text, "its role has no permission for "+prefix+"/nodes/"+n.name+"/live")
		})
	}
}

// foreignAddresses claims the address of the first node for a service, and makes it an endpoint of
// another service. The other nodes must refuse the claim and name the node, and the node must
// refuse the endpoint.
func (w *world) foreignAddresses() {
	w.t.Helper()
	const own = "10.1.0.1"
	w.put("/services/claim", `{"vips":["`+own+`"],"ports":[{"port":80}]}`)
	w.put("/services/lead", `{"vips":["`+webVIP+`"],"ports":[{"port":1090,"target_port":22}],"endpoints":[{"address":"`+own+`"}]}`)
	for i, n := range w.nodes {
		n.await("the refused claim and endpoint", func(s status) bool {
			reported := func(what string) bool {
				return slices.ContainsFunc(s.Problems, func(p problem) bool { return strings.Contains(p.Text, what) })
			}
			if i == 0 {
				return reported(own+" is not served") && reported(`add allowed_endpoints = ["`+own+`/32"] to [addresses]`)
			}
			return reported("it is an address of node "+w.nodes[0].name) && reported("on ports below 1024 of other nodes (target_port, health.port or health_port) are not used")
		})
	}
	for _, key := range []string{"/services/claim", "/services/lead"} {
		w.remove(key)
	}
	for _, n := range w.nodes {
		n.await("no problem of these services", func(s status) bool {
			return !slices.ContainsFunc(s.Problems, func(p problem) bool { return strings.Contains(p.Text, own) })
		})
	}
}

// hostPort is the port of a program on each node.
const hostPort = 30099

// foreignPorts defines services with node ports in etcd. Nodes must refuse ports that etcd or their
// own programs use.
func (w *world) foreignPorts() {
	w.t.Helper()
	w.put("/services/ports", `{"vips":["`+webVIP+`"],"ports":[{"name":"a","port":1080,"target_port":8080,"node_port":30100},`+
		fmt.Sprintf(`{"name":"b","port":1081,"target_port":8080,"node_port":%d},{"name":"c","port":1082,"target_port":8080,"node_port":2380}]}`, hostPort))
	w.endpoint("ports", "a", 1)
	for i, n := range w.nodes {
		n.await("the node ports that it does not open", func(s status) bool {
			reported := func(what string) bool {
				return slices.ContainsFunc(s.Problems, func(p problem) bool { return strings.Contains(p.Text, what) })
			}
			return reported(fmt.Sprintf("node port %d/tcp is not opened: a program on this node listens on it", hostPort)) && reported("node port 2380/tcp is not opened: it is one of etcd's ports")
		})
		at := fmt.Sprintf("10.1.%d.1", i)
		wait.For(w.t, patience, "the service to answer at its node port", func() bool { who, err := connectPatiently(n.behind, at+":30100"); return err == nil && who == "e1" })
		if who, err := connectPatiently(n.behind, fmt.Sprintf("%s:%d", at, hostPort)); err != nil || who != "program" {
			w.t.Errorf("port %d on %s: answer = %q, error = %v, want an answer from the host's program", hostPort, n.name, who, err)
		}
	}
	for _, key := range []string{"/services/ports", "/endpoints/ports/a"} {
		w.remove(key)
	}
}

// changeFast makes 200 changes per second for a short time. No node may lag behind.
func (w *world) changeFast(l *loop) {
	w.t.Helper()
	const services, endpoints = 5, 10
	fill(w.t, w.client, services, endpoints)
	// A change may wait for the previous sync.
	var during spread
	changes, end := w.stream(200, services, endpoints, func() { _, during = w.moves(10, 100*time.Millisecond) })
	w.t.Logf("while there are 200 changes a second, %d in all, one is in effect at every node after %s; the last after %s", changes, during, end)
	wantWithin(w.t, "9 of 10 changes are in effect", 2*kernelWithin, during.at(0.9))
	l.waitForMore(20)
}

// BenchmarkFleet measures a fleet, including a one-minute etcd outage. The whole measurement is one
// operation.
func BenchmarkFleet(b *testing.B) {
	lab.Require(b)
	bin := program.Bin(b)
	for _, mode := range []string{"iptables", "userspace"} {
		b.Run(mode, func(b *testing.B) {
			for b.Loop() {
				w := newWorld(b, bin, 3)
				w.start(mode)
				all, last := w.moves(200, 200*time.Millisecond)
				all.report(b, "node")
				last.report(b, "all")
				if got := last.at(0.99); got > kernelWithin {
					b.Errorf("time for 99 of 100 changes = %s, want %s", got, kernelWithin)
				}
				if mode == "userspace" { // the source of the services is the same in each mode
					continue
				}
				l := w.clients()
				for _, f := range w.faults(time.Minute, true) {
					w.survives(f, l)
				}
				b.ReportMetric(float64(l.total()), "connections")
				w.restartAll(mode, l)
			}
		})
	}
}

// BenchmarkLargeFleet measures one vipd that serves 10,000 services with 10 endpoints each. It
// measures the start, and endpoint changes with and without 200 other changes per second.
func BenchmarkLargeFleet(b *testing.B) {
	const services, endpoints = 10_000, 10
	lab.Require(b)
	bin := program.Bin(b)
	for b.Loop() {
		w := newWorld(b, bin, 1)
		fill(b, w.client, services, endpoints)
		n := w.nodes[0]
		began := time.Now()
		w.start("iptables")
		b.ReportMetric(time.Since(began).Seconds(), "first-s")
		pid := n.vipd.Process.Pid
		_, most := memory(b, pid)
		b.ReportMetric(mib(most), "first-MiB")
		all, _ := w.moves(50, 500*time.Millisecond)
		all.report(b, "quiet")
		before, _ := memory(b, pid)
		used, syncs, took := cpu(b, pid), n.metric(syncCount), n.metric(syncSum)
		var during spread
		began = time.Now()
		changes, end := w.stream(200, services, endpoints, func() {
			for time.Since(began) < time.Minute {
				all, _ := w.moves(5, 500*time.Millisecond)
				during = append(during, all...)
			}
		})
		during.report(b, "stream")
		b.ReportMetric(milli(end), "last-ms")
		b.ReportMetric(1000*(n.metric(syncSum)-took)/(n.metric(syncCount)-syncs), "sync-ms")
		b.ReportMetric(100*(cpu(b, pid)-used).Seconds()/time.Since(began).Seconds(), "%CPU")
		b.ReportMetric(float64(changes)/time.Since(began).Seconds(), "changes/s")
		after, most := memory(b, pid)
		b.ReportMetric(mib(most), "MiB")
		b.ReportMetric(mib(after-before), "MiB-more")
	}
}

const (
	syncSum   = `vipd_sync_duration_seconds_sum{kind="partial"}`
	syncCount = `vipd_sync_duration_seconds_count{kind="partial"}`
)
