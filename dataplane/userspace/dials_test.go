package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/wait"
)

type dials struct {
	mu       sync.Mutex
	outcomes map[netip.AddrPort][]error
}

func (d *dials) report(t balancer.Target, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.Service != "web" {
		err = fmt.Errorf("report about the service %q, want reports only about the test's service", t.Service)
	}
	at := netip.AddrPortFrom(t.Addr, t.Port)
	d.outcomes[at] = append(d.outcomes[at], err)
}

func (d *dials) of(at netip.AddrPort) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.outcomes[at]
}

// collectReports makes a dataplane report the results of its dials, and returns the collected
// reports.
func collectReports(d *rig) *dials {
	reports := &dials{outcomes: map[netip.AddrPort][]error{}}
	d.ReportDials(reports.report)
	return reports
}

// awaitReport calls ask repeatedly until the last report about the backend at is the error want. A
// nil want means a success.
func awaitReport(t *testing.T, reports *dials, at netip.AddrPort, want error, ask func()) {
	t.Helper()
	eventually(t, fmt.Sprintf("a report of %v about %s", want, at), func() error {
		ask()
		all := reports.of(at)
		if len(all) == 0 || !errors.Is(all[len(all)-1], want) {
			return fmt.Errorf("reports = %v", all)
		}
		return nil
	})
}

// TestDialsAreReported makes a backend refuse connections and then accept them again. Each failure
// must be reported, and so must the first success after a failure. There must be no reports about a
// backend that has never failed.
func TestDialsAreReported(t *testing.T) {
	good, bad := serveAt(t, "127.0.0.1:0", named("good")), serveAt(t, "127.0.0.1:0", named("bad"))
	bad.stop()
	d := start(t, Options{})
	reports := collectReports(d)
	f := frontendAt("127.77.9.1:9000", good.addr, bad.addr)
	d.apply(f)
	ask := func() {
		if _, err := askOnce(f.AddrPort(), ""); err != nil {
			t.Error(err)
		}
	}
	awaitReport(t, reports, bad.addr, syscall.ECONNREFUSED, ask)
	serveAt(t, bad.addr.String(), named("bad"))
	awaitReport(t, reports, bad.addr, nil, ask)
	n := len(reports.of(bad.addr))
	for range 20 {
		ask()
	}
	if all := reports.of(bad.addr); len(all) != n {
		t.Errorf("reports while all dials succeed = %v, want none", all[n:])
	}
	if all := reports.of(good.addr); len(all) > 0 {
		t.Errorf("reports about the backend that never failed = %v, want none", all)
	}
}

// TestMissedEndsAreCounted closes more connections than a slow follower can receive events for. The
// follower must learn the number of end events that it has missed.
func TestMissedEndsAreCounted(t *testing.T) {
	const begins, ends = 100, 3 * followerBuffer
	d := start(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	slow, proceed := make(chan bool, 1), make(chan bool)
	received, lost := 0, uint64(0)
	var following sync.WaitGroup
	following.Go(func() {
		err := d.Follow(ctx, func(began bool, _ *dataplane.Connection) {
			if began {
				slow <- true
				<-proceed
				return
			}
			received++
		}, func(ends uint64) { lost += ends })
		if err != nil {
			t.Error(err)
		}
	})
	wait.For(t, wait.Patience, "a follower", d.followers.some)
	d.followers.publish(connEvent{began: true})
	<-slow
	for range ends {
		d.followers.publish(connEvent{})
	}
	for range begins { // the follower also misses start events, which do not count as ends
		d.followers.publish(connEvent{began: true})
	}
	cancel()
	close(proceed)
	following.Wait()
	if received == 0 || lost == 0 || uint64(received)+lost != ends {
		t.Errorf("end events: sent = %d, received = %d, lost = %d; want received plus lost = sent, and neither 0", ends, received, lost)
	}
}

// TestEjectedIsTheLastResort ejects a backend. While any other backend accepts connections, the
// ejected backend must get none.
func TestEjectedIsTheLastResort(t *testing.T) {
	other, backup, ejected := serveAt(t, "127.0.0.1:0", named("other")), serveAt(t, "127.0.0.1:0", named("backup")), serveAt(t, "127.0.0.1:0", named("ejected"))
	d := start(t, Options{})
	f := with(frontendAt("127.77.9.3:9000", other.addr, backup.addr, ejected.addr), func(f *balancer.Frontend) {
		for i := range f.Backends {
			b := &f.Backends[i]
			switch b.Addr {
			case backup.addr:
				b.State, b.Weight = balancer.Standby, 0
			case ejected.addr:
				b.State, b.Weight = balancer.Ejected, 0
			}
		}
	})
	d.apply(f)
	wantAll := func(want string) {
		t.Helper()
		for range 20 {
			if name, err := askOnce(f.AddrPort(), ""); err != nil || name != want {
				t.Fatalf("server = %q, %v; want %s", name, err, want)
			}
		}
	}
	wantAll("other")
	other.stop()
	wantAll("backup")
	backup.stop()
	wantAll("ejected")
}

// TestSilentUDPBackendsComeBack uses a backend that never answers, such as a log server. When it
// stops refusing datagrams, a success must be reported.
func TestSilentUDPBackendsComeBack(t *testing.T) {
	silent, stop := startUDPServer(t, "127.0.0.1:0", "silent")
	stop()
	d := start(t, Options{})
	reports := collectReports(d)
	f := frontendAt("127.77.9.9:9000/udp", silent)
	d.apply(f)
	ask := func() {
		c := udpClient(t, f.AddrPort())
		_, _ = c.Write([]byte("x"))
		_ = c.Close()
	}
	awaitReport(t, reports, silent, syscall.ECONNREFUSED, ask)
	back, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(silent)) // receives datagrams, but never answers
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	awaitReport(t, reports, silent, nil, ask)
}
