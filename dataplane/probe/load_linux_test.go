package probe_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/dataplane/probe"
)

// BenchmarkTenThousand checks 10,000 targets every 2 s by TCP, for b.N seconds at least, and says
// what that costs: cores of this process, kernel time included, and MiB of memory. The budget is
// half a core and 200 MiB.
//
//	go test -run=^$ -bench=TenThousand -benchtime=20x ./dataplane/probe
func BenchmarkTenThousand(b *testing.B) {
	port := acceptor(b)
	var checks, failed atomic.Int64
	r := probe.NewRunner(probe.Options{
		Report: func([]probe.Transition) {},
		Observe: func(_ balancer.HealthType, r health.Result) {
			checks.Add(1)
			if r.Outcome != health.Passed && failed.Add(1) == 1 {
				b.Log("the first that did not pass: ", r.Text)
			}
		},
	})
	h := usual(nil)
	var m snap.Map[balancer.Target, health.Subject]
	for i := range 10_000 {
		a := netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})
		m = m.Set(balancer.Target{Service: "web", Addr: a, Port: 80}, health.Subject{At: netip.AddrPortFrom(a, port), Proto: balancer.TCP, Health: h})
	}
	r.Set(m)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	time.Sleep(4 * time.Second) // all are there, and spread
	checks.Store(0)
	failed.Store(0)
	start, used := time.Now(), cpu(b)
	time.Sleep(time.Duration(b.N) * time.Second) // what is measured takes as long as it is watched
	took := time.Since(start).Seconds()
	b.ReportMetric((cpu(b)-used).Seconds()/took, "cores")
	b.ReportMetric(float64(checks.Load())/took, "checks/s")
	b.ReportMetric(float64(failed.Load()), "failed")
	b.ReportMetric(float64(resident(b))/(1<<20), "MiB")
	cancel()
	<-ended
}

// cpu is the processor time of this process so far.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident is how much memory this process has.
func resident(b *testing.B) int {
	b.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		b.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// acceptor starts a server in a process of its own and returns its port.
func acceptor(b *testing.B) uint16 {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), acceptVar+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // whose end would end the server
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); runtime.UnlockOSThread() })
	var port uint16
	if _, err := fmt.Fscanf(out, "port %d\n", &port); err != nil {
		b.Fatal(err)
	}
	return port
}

// stoppedVar makes the test binary do one check, while which its parent stops it.
const stoppedVar = "VIPD_TEST_STOPPED"

// TestBusyHost stops a process for longer than its check may last. The target answers in time, but
// nobody was there to see it; nor can the process know whether it did, so it says nothing of the
// target.
func TestBusyHost(t *testing.T) {
	if os.Getenv(stoppedVar) != "" {
		stopped(t)
		return
	}
	got := ""
	for range 5 { // the check may be over before it is stopped, where this process has to wait for a processor
		if got = whileStopped(t); strings.Contains(got, busy) {
			return
		}
	}
	t.Errorf("a process that was stopped says %q", got)
}

// whileStopped stops a process while it does its check, and returns what it says.
func whileStopped(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestBusyHost$", "-test.short") // else the check is a child's of its, in namespaces
	cmd.Env = append(os.Environ(), stoppedVar+"=yes")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	lines.Scan() // it is about to check
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second) // the stop itself: longer than the check's timeout of 2 s, and what is forgiven
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	lines.Scan()
	return lines.Text()
}

// stopped checks a target that hangs, and says what it comes to.
func stopped(t *testing.T) {
	at := serve(t, func(c net.Conn) {
		fmt.Println("checking") // before, it might be stopped too early
		stuck(c)
	})
	p := newProbe(define(balancer.HTTPHealth, func(h *balancer.Health) { h.Timeout = 2 * time.Second }), balancer.TCP)
	r := p.Check(t.Context(), at)
	fmt.Printf("%s: %s\n", r.Outcome, r.Text)
}
