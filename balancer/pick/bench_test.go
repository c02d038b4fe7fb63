package pick

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
)

// benchWeights returns n weights, all different if distinct.
func benchWeights(n int, distinct bool) []int {
	weights := make([]int, n)
	for i := range weights {
		weights[i] = 1 + i%4
		if distinct {
			weights[i] = 1 + i
		}
	}
	return weights
}

func BenchmarkPick(b *testing.B) {
	for _, s := range schedulers() {
		for _, n := range []int{10, 1000} {
			b.Run(fmt.Sprintf("%s/%d", s, n), func(b *testing.B) {
				loads := make([]int64, n)
				p := New(s, active(benchWeights(n, false)...), func(i int) int64 { return loads[i] })
				p.Pick(flowOf(0), nil)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					loads[p.Pick(flowOf(i), nil)]++
				}
			})
		}
	}
}

// BenchmarkWeighted is wrr of many backends, all weights different, and with one that is always full.
func BenchmarkWeighted(b *testing.B) {
	for name, full := range map[string]int{"distinct": -1, "full": 999} {
		b.Run(name, func(b *testing.B) {
			p := New(balancer.WeightedRoundRobin, active(benchWeights(1000, true)...), nil)
			for b.Loop() {
				p.Pick(Flow{}, func(i int) bool { return i == full })
			}
		})
	}
}

func BenchmarkNext(b *testing.B) {
	for _, s := range schedulers() {
		for _, n := range []int{10, 1000} {
			b.Run(fmt.Sprintf("%s/%d", s, n), func(b *testing.B) {
				backends := active(benchWeights(n, false)...)
				p := New(s, backends, nil)
				b.ReportAllocs()
				for b.Loop() {
					p = Next(p, s, backends, nil)
				}
			})
		}
	}
}

func BenchmarkMaglevTable(b *testing.B) {
	for _, n := range []int{10, 1000} {
		for _, distinct := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/distinct=%v", n, distinct), func(b *testing.B) {
				members := membersOf(active(benchWeights(n, distinct)...))
				b.ReportAllocs()
				for b.Loop() {
					maglevSlots(members)
				}
			})
		}
	}
}

func BenchmarkSticky(b *testing.B) {
	s, now := NewSticky(time.Hour, 0), time.Unix(1e9, 0)
	client := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range DefaultStickyLimit {
		s.Store(client(i), addressOf(i%100), now)
	}
	b.Run("lookup", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			s.Lookup(client(i*7919%DefaultStickyLimit), now)
		}
	})
	b.Run("store known", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			s.Store(client(i*7919%DefaultStickyLimit), addressOf(i%100), now)
		}
	})
	b.Run("store new, full", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			s.Store(client(DefaultStickyLimit+i), addressOf(i%100), now)
		}
	})
}
