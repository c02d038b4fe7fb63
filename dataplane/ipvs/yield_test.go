package ipvs

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// TestYield makes the dataplane yield while virtual servers have no connections, closing
// connections or lasting connections. Each virtual server must be deleted when it has no
// connections, and the counts must be retained.
func TestYield(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, newKernel(), dir)
		p.observe()
		unused, ends, lasts, inTheWay := web(key(0), 1, 2), web(key(1), 1, 2), web(key(2), 1, 2), web(key(3), 1, 2)
		p.k.omitted = map[balancer.Key]bool{lasts.Key: true, inTheWay.Key: true}
		p.k.skip = func(k balancer.Key) bool { return k == lasts.Key || k == unused.Key }
		p.apply(unused, ends, lasts, inTheWay)
		for _, f := range []*balancer.Frontend{ends, lasts, inTheWay} {
			p.k.connect(t, f, 1, 1, 0)
		}
		counted := func() (n uint64) {
			for _, c := range p.Counters() {
				n += c.Connections
			}
			return n
		}
		before := counted()
		there := func(when string, want ...*balancer.Frontend) {
			t.Helper()
			synctest.Wait()
			table, err := p.k.Fake.Table(context.Background())
			if err != nil || len(table) != len(want) {
				t.Errorf("%s: virtual servers = %d, want %d; error = %v", when, len(table), len(want), err)
			}
			for _, f := range want {
				if _, ok := table[f.Key]; !ok {
					t.Errorf("%s: virtual server %s is missing, want it to exist", when, f.Key)
				}
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- p.Yield(ctx) }()
		there("at once", unused, ends, lasts, inTheWay)
		time.Sleep(yieldEvery + time.Second)
		there("after the first look", unused, ends, lasts, inTheWay)
		more := func(s *ipvsnl.DestinationState) { s.Connections++; s.Active++ }
		if err := p.k.SetDestination(inTheWay.Key, address(inTheWay.Key, 2), more); err != nil {
			t.Fatal(err)
		}
		time.Sleep(yieldEvery)
		there("after the second look", ends, lasts)
		p.k.connect(t, ends, 1, 0, 0)
		time.Sleep(yieldEvery)
		there("after an end", lasts)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		there("when time is over", lasts)
		if err := p.Close(ctx, false); err != nil { // virtual servers must be removed although ctx is canceled
			t.Error(err)
		}
		there("after Close")
		if got := counted(); got != before+1 {
			t.Errorf("counted connections = %d, before the yield %d; want one more", got, before)
		}
	})
}
