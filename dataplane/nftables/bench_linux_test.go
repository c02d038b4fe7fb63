package nftables

import (
	"context"
	"net/netip"
	"strconv"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
)

// numberedFrontend returns frontend number i (less than 65,536), which has 10 backends.
func numberedFrontend(i int, s balancer.Scheduler) *balancer.Frontend {
	f := &balancer.Frontend{
		Key:     balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Proto: balancer.TCP},
		Service: "web", Policy: balancer.Policy{Scheduler: s},
	}
	for j := range 10 {
		f.Backends = append(f.Backends, balancer.Backend{Addr: at(i*10 + j), State: balancer.Active, Weight: 1})
	}
	return f
}

// applyNumbered applies the first n numbered frontends in batches, as the engine does.
func applyNumbered(b *testing.B, d *Dataplane, n int, s balancer.Scheduler) {
	b.Helper()
	for i := 0; i < n; i += 200 {
		var batch []dataplane.Change
		for j := i; j < min(n, i+200); j++ {
			f := numberedFrontend(j, s)
			batch = append(batch, dataplane.Change{Key: f.Key, New: f})
		}
		if err := d.Apply(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
	}
}

func newBench(b *testing.B) *Dataplane {
	b.Helper()
	lab.Require(b)
	d, err := New(Options{Mark: 0x8000})
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// BenchmarkLoad applies 10,000 frontends with 10 backends each to an empty table.
func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		d := newBench(b)
		applyNumbered(b, d, 10_000, balancer.WeightedRoundRobin)
		if err := d.Close(context.Background(), false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAdd adds a frontend to 10,000 existing frontends, and deletes it again.
func BenchmarkAdd(b *testing.B) {
	for _, s := range []balancer.Scheduler{balancer.WeightedRoundRobin, balancer.RoundRobin} {
		b.Run(string(s), func(b *testing.B) {
			d := newBench(b)
			applyNumbered(b, d, 10_000, s)
			f := numberedFrontend(10_000, s)
			for b.Loop() {
				for _, c := range []dataplane.Change{{Key: f.Key, New: f}, {Key: f.Key}} {
					if err := d.Apply(context.Background(), []dataplane.Change{c}); err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := d.Close(context.Background(), false); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkFlapBetweenRanges removes a backend of one of 1,000 frontends with a single port, and
// adds it again. It runs without port ranges, and with 1,000 more frontends that have port ranges
// on other addresses. Another frontend always has the same number of backends, because the kernel
// checks all chains when one is created.
func BenchmarkFlapBetweenRanges(b *testing.B) {
	for _, ranges := range []int{0, 1000} {
		b.Run(strconv.Itoa(ranges), func(b *testing.B) {
			d := newBench(b)
			applyNumbered(b, d, 1000, balancer.WeightedRoundRobin)
			var batch []dataplane.Change
			for i := range ranges {
				f := numberedFrontend(2000+i, balancer.WeightedRoundRobin)
				f.Key.Port = balancer.NewPortRange(8000, 8999)
				f.Open = []balancer.PortRange{f.Key.Port}
				batch = append(batch, dataplane.Change{Key: f.Key, New: f})
			}
			if err := d.Apply(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
			f := numberedFrontend(5, balancer.WeightedRoundRobin)
			g := *f
			g.Backends = f.Backends[1:]
			other := numberedFrontend(6, balancer.WeightedRoundRobin)
			other.Backends = other.Backends[1:]
			if err := d.Apply(b.Context(), []dataplane.Change{{Key: other.Key, New: other}}); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				for _, c := range []dataplane.Change{{Key: f.Key, Old: f, New: &g}, {Key: f.Key, Old: &g, New: f}} {
					if err := d.Apply(b.Context(), []dataplane.Change{c}); err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := d.Close(context.Background(), false); err != nil {
				b.Fatal(err)
			}
		})
	}
}
