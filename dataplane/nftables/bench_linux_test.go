package nftables

import (
	"context"
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
)

// BenchmarkLoad loads 10,000 frontends of 10 backends each in batches as the engine makes them.
func BenchmarkLoad(b *testing.B) {
	lab.Require(b)
	var batches [][]dataplane.Change
	var batch []dataplane.Change
	for i := range 10_000 {
		f := &balancer.Frontend{
			Key:     balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Proto: balancer.TCP},
			Service: "web", Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin},
		}
		for j := range 10 {
			f.Backends = append(f.Backends, balancer.Backend{Addr: at(i*10 + j), State: balancer.Active, Weight: 1})
		}
		if batch = append(batch, dataplane.Change{Key: f.Key, New: f}); len(batch) == 200 {
			batches, batch = append(batches, batch), nil
		}
	}
	for b.Loop() {
		d, err := New(Options{Mark: 0x8000})
		if err != nil {
			b.Fatal(err)
		}
		for _, batch := range batches {
			if err := d.Apply(context.Background(), batch); err != nil {
				b.Fatal(err)
			}
		}
		if err := d.Close(context.Background(), false); err != nil {
			b.Fatal(err)
		}
	}
}
