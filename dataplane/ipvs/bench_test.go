package ipvs

import (
	"testing"

	"vipd/balancer"
)

// BenchmarkApply applies, adopts and changes 10,000 frontends with 10 backends each. It uses a Fake
// instead of the kernel, so it measures only this process's work.
func BenchmarkApply(b *testing.B) {
	var all []*balancer.Frontend
	for n := range 10_000 {
		all = append(all, web(balancer.Key{Addr: key(0).Addr, Port: balancer.PortRange(1 + n), Proto: balancer.TCP}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
	}
	k, dir := newKernel(), b.TempDir()
	p := start(b, k, dir)
	p.observe()
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			p.k.Flush()
			p.observe()
			p.apply(all...)
		}
	})
	b.Run("adopt", func(b *testing.B) {
		for b.Loop() {
			p.restart(true)
			p.observe()
			p.apply(all...)
		}
	})
	b.Run("change", func(b *testing.B) {
		f := all[500]
		g := web(f.Key, 1, 2, 3, 4, 5, 6, 7, 8, 9)
		b.ReportAllocs()
		for b.Loop() {
			p.apply(g)
			p.apply(f)
		}
	})
	b.Run("intact", func(b *testing.B) {
		for b.Loop() {
			if reason, err := p.Intact(b.Context()); reason != "" || err != nil {
				b.Fatal(reason, err)
			}
		}
	})
}
