package userspace

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestSilenceIsTold checks that a dial without an answer is told when its time is over.
func TestSilenceIsTold(t *testing.T) {
	hole := blackhole(t)
	good := serveAt(t, "127.0.0.1:0", named("good"))
	d := start(t, Options{})
	told := listenTo(d)
	f := frontendAt("127.77.9.4:9000", good.addr, hole)
	f.ConnectTimeout = 100 * time.Millisecond
	d.apply(f)
	wantTold(t, told, hole, os.ErrDeadlineExceeded, func() {
		_, _ = askOnce(f.AddrPort(), "") // no server may answer within that time
	})
}

// TestRedirectedDialsAreTold checks it in the other layout: both families and protocols, refused and then answered.
func TestRedirectedDialsAreTold(t *testing.T) {
	w := newTown(t)
	d := redirecting(t)
	told := listenTo(d)
	all := w.four(t, 80)
	d.apply(all...)
	for _, f := range all[:3:3] { // the fourth has the address of the third
		at := f.Backends[0].Addr
		wantTold(t, told, at, syscall.ECONNREFUSED, func() { _ = tryFor(t, w.remote, f.Key, silence) })
	}
	w.serve()
	for _, f := range all {
		wantTold(t, told, f.Backends[0].Addr, nil, func() { _ = try(t, w.remote, f.Key) })
	}
}
