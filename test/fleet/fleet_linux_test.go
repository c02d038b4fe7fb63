package fleet

import (
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestFleet runs three vipd through everything, in each mode that every kernel has.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("needs half a minute: not with -short")
	}
	lab.Require(t)
	bin := program.Bin(t)
	for _, mode := range []string{"iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, bin)
			w.start(mode)
			_, last := w.moves(40, 200*time.Millisecond)
			t.Logf("from a put to its effect at every node: %s", last)
			if got, most := last.at(0.95), wait.Scaled(busy*kernelWithin); got > most {
				t.Errorf("95 of 100 changes were in effect within %s, want %s", got, most)
			}
			l := w.clients()
			for _, f := range w.faults(mode, 4*time.Second) {
				if mode == "iptables" || f.unreachable { // the source is the same
					w.bears(f, l)
				}
			}
			w.restarts(mode, l)
			w.keepsSecret()
		})
	}
}

// BenchmarkFleet measures them, and lets the worst faults last a minute. The operation is the whole measurement.
func BenchmarkFleet(b *testing.B) {
	lab.Require(b)
	bin := program.Bin(b)
	for _, mode := range []string{"iptables", "userspace"} {
		b.Run(mode, func(b *testing.B) {
			for b.Loop() {
				w := newWorld(b, bin)
				w.start(mode)
				all, last := w.moves(200, 200*time.Millisecond)
				all.report(b, "node")
				last.report(b, "all")
				if got := last.at(0.99); got > kernelWithin {
					b.Errorf("99 of 100 changes were in effect within %s, want %s", got, kernelWithin)
				}
				if mode == "userspace" {
					return
				}
				l := w.clients()
				for _, f := range w.faults(mode, time.Minute) {
					w.bears(f, l)
				}
				b.ReportMetric(float64(l.total()), "connections")
				w.restarts(mode, l)
			}
		})
	}
}
