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

// BenchmarkTenThousand checks 10,000 targets every 2 s over TCP, for b.N seconds. It reports the
// CPU time of this process as a number of cores, including kernel time, and its memory in MiB. The
// budget is half a core and 200 MiB.
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
				b.Log("first failed check: ", r.Text)
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
	time.Sleep(4 * time.Second) // by then, the checks are evenly spread over the interval
	checks.Store(0)
	failed.Store(0)
	start, used := time.Now(), cpu(b)
	time.Sleep(time.Duration(b.N) * time.Second) // the measured period
	took := time.Since(start).Seconds()
	b.ReportMetric((cpu(b)-used).Seconds()/took, "cores")
	b.ReportMetric(float64(checks.Load())/took, "checks/s")
	b.ReportMetric(float64(failed.Load()), "failed")
	b.ReportMetric(float64(resident(b))/(1<<20), "MiB")
	cancel()
	<-ended
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident returns the size of this process's resident memory in bytes.
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

// acceptor starts a server in another process. It returns the server's port.
func acceptor(b *testing.B) uint16 {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), acceptVar+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the server is killed when this thread exits
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

// stoppedVar is the environment variable that makes the test binary run a single check, during
// which the parent process stops it.
const stoppedVar = "VIPD_TEST_STOPPED"

// TestBusyHostBlamesNoTarget stops a process during its check for longer than the check's timeout.
// The process can't know whether the target answered in time, so the check must count as not run.
func TestBusyHostBlamesNoTarget(t *testing.T) {
	if os.Getenv(stoppedVar) != "" {
		stopped(t)
		return
	}
	got := ""
	for range 5 { // on a busy host, the check may finish before the process is stopped
		if got = whileStopped(t); strings.Contains(got, busy) {
			return
		}
	}
	t.Errorf("stopped process: result = %q, want it to contain %q", got, busy)
}

// whileStopped starts a child process that runs a check, and stops the child during the check. It
// returns the child's output.
func whileStopped(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestBusyHostBlamesNoTarget$", "-test.short") // without -test.short, the check would run in another child, in namespaces
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
	lines.Scan() // "checking"
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second) // longer than the check's timeout of 2 s plus the tolerated delay
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	lines.Scan()
	return lines.Text()
}

// stopped checks a target that never answers, and prints the result of the check.
func stopped(t *testing.T) {
	at := serve(t, func(c net.Conn) {
		fmt.Println("checking") // the parent may stop this process only once it is connected
		stuck(c)
	})
	p := newProbe(define(balancer.HTTPHealth, func(h *balancer.Health) { h.Timeout = 2 * time.Second }), balancer.TCP)
	r := p.Check(t.Context(), at)
	fmt.Printf("%s: %s\n", r.Outcome, r.Text)
}
