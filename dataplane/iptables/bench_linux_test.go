package iptables

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// fleet is n services of ten endpoints each, at random addresses.
func fleet(n int) []*balancer.Frontend {
	r := rand.New(rand.NewPCG(uint64(n), 4))
	all := make([]*balancer.Frontend, 0, n)
	seen := map[uint32]bool{}
	for len(all) < n {
		vip := 10<<24 | 96<<16 | r.Uint32N(1<<20)
		if seen[vip] {
			continue
		}
		seen[vip] = true
		f := frontend(balancer.WeightedRoundRobin, equal(10)...)
		f.Addr = netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, vip)))
		f.Service = balancer.Name(fmt.Sprint("service-", len(all)))
		for i := range f.Backends {
			f.Backends[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(r.Uint32N(250)), byte(i + 1)}), 8080)
		}
		all = append(all, f)
	}
	return all
}

// BenchmarkLoad loads a fleet into an empty kernel, and then changes one service, adds one and removes it.
func BenchmarkLoad(b *testing.B) {
	for _, backend := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		for _, n := range []int{1000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", backend, n), func(b *testing.B) { benchmarkLoad(b, backend, n) })
		}
	}
}

func benchmarkLoad(b *testing.B, backend xtables.Variant, n int) {
	lab.Require(b)
	ctx := context.Background()
	d, err := New(ctx, Options{Variant: backend})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := d.Close(ctx, false); err != nil {
			b.Error(err)
		}
	}()
	timed := func(name string, f func() error) {
		started := time.Now()
		if err := f(); err != nil {
			b.Fatal(name, ": ", err)
		}
		b.ReportMetric(float64(time.Since(started).Microseconds())/1000, name+"-ms")
	}
	all := fleet(n + 1)
	var batch []dataplane.Change
	for _, f := range all[:n] {
		batch = append(batch, dataplane.Change{Key: f.Key, New: f})
	}
	for b.Loop() {
		if _, err := d.Observe(ctx); err != nil {
			b.Fatal(err)
		}
		timed("load", func() error { return d.Apply(ctx, batch) })
		for range 3 {
			changed := *all[n/2]
			changed.Backends = changed.Backends[1:]
			timed("change", func() error { return d.Apply(ctx, []dataplane.Change{{Key: changed.Key, New: &changed}}) })
			timed("back", func() error { return d.Apply(ctx, []dataplane.Change{{Key: changed.Key, New: all[n/2]}}) })
			timed("add", func() error { return d.Apply(ctx, []dataplane.Change{{Key: all[n].Key, New: all[n]}}) })
			timed("remove", func() error { return d.Apply(ctx, []dataplane.Change{{Key: all[n].Key}}) })
		}
		timed("look", func() error { _, err := d.Intact(ctx); return err })
		timed("idle", func() error { _, err := d.Intact(ctx); return err })
		timed("counters", func() error { d.Counters(); return nil })
		timed("observe", func() error {
			seen, err := d.Observe(ctx)
			if err == nil && (len(seen.Digests) != n || len(seen.Damage) > 0) {
				err = fmt.Errorf("%d frontends, %v", len(seen.Digests), seen.Damage)
			}
			return err
		})
		timed("clear", func() error {
			var gone []dataplane.Change
			for _, f := range all[:n] {
				gone = append(gone, dataplane.Change{Key: f.Key})
			}
			return d.Apply(ctx, gone)
		})
	}
}
