package userspace

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestDialTimeoutIsReported dials a backend that does not answer. The timeout must be reported.
func TestDialTimeoutIsReported(t *testing.T) {
	hole := blackhole(t)
	good := serveAt(t, "127.0.0.1:0", named("good"))
	d := start(t, Options{})
	reports := collectReports(d)
	f := frontendAt("127.77.9.4:9000", good.addr, hole)
	f.ConnectTimeout = 100 * time.Millisecond
	d.apply(f)
	awaitReport(t, reports, hole, os.ErrDeadlineExceeded, func() {
		_, _ = askOnce(f.AddrPort(), "") // fails because the backend does not answer before the timeout
	})
}

// TestRedirectedDialsAreReported makes backends refuse connections and then accept them, with
// redirects, for both families and protocols. Each outcome must be reported.
func TestRedirectedDialsAreReported(t *testing.T) {
	w := newTwoHosts(t)
	d := redirecting(t)
	reports := collectReports(d)
	all := w.frontendsAt(t, 80)
	d.apply(all...)
	for _, f := range all[:3:3] { // omits the fourth frontend, because its backend has the same address as the third frontend's
		at := f.Backends[0].Addr
		awaitReport(t, reports, at, syscall.ECONNREFUSED, func() { _ = tryFor(t, w.remote, f.Key, silence) })
	}
	w.serve()
	for _, f := range all {
		awaitReport(t, reports, f.Backends[0].Addr, nil, func() { _ = try(t, w.remote, f.Key) })
	}
}
