package userspace

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestDialTimeoutIsReported dials an address that never answers. The timeout is reported.
func TestDialTimeoutIsReported(t *testing.T) {
	hole := blackhole(t)
	good := serveAt(t, "127.0.0.1:0", named("good"))
	d := start(t, Options{})
	reports := collectReports(d)
	f := frontendAt("127.77.9.4:9000", good.addr, hole)
	f.ConnectTimeout = 100 * time.Millisecond
	d.apply(f)
	awaitReport(t, reports, hole, os.ErrDeadlineExceeded, func() {
		_, _ = askOnce(f.AddrPort(), "") // no server can answer within that time
	})
}

// TestRedirectedDialsAreReported refuses and then answers dials in the redirect interception, with
// both families and protocols. Each is reported.
func TestRedirectedDialsAreReported(t *testing.T) {
	w := newTwoHosts(t)
	d := redirecting(t)
	reports := collectReports(d)
	all := w.frontendsAt(t, 80)
	d.apply(all...)
	for _, f := range all[:3:3] { // the fourth has the address of the third
		at := f.Backends[0].Addr
		awaitReport(t, reports, at, syscall.ECONNREFUSED, func() { _ = tryFor(t, w.remote, f.Key, silence) })
	}
	w.serve()
	for _, f := range all {
		awaitReport(t, reports, f.Backends[0].Addr, nil, func() { _ = try(t, w.remote, f.Key) })
	}
}
