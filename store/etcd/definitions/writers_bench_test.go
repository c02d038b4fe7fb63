package definitions

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/test/etcdkit"
)

// BenchmarkConcurrentWriters adds services to 1,000 existing services, with several concurrent
// writers that work like vipctl. Each operation adds a service. A writer must read all services
// again if another writer has added claims in the meantime.
func BenchmarkConcurrentWriters(b *testing.B) {
	for _, writers := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			cluster := etcdkit.Start(b, etcdkit.Options{})
			newWriter := func() *Writer {
				c, err := client.NewClient(client.Config{Endpoints: cluster.Endpoints(), Prefix: "/vipd"})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = c.Close() })
				return NewWriter(c)
			}
			service := func(i int) Change {
				vip := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
				return Change{Name: balancer.Name(fmt.Sprint("s", i)), Fields: map[string]any{"vips": []any{vip}, "ports": []any{map[string]any{"port": int64(80)}}}}
			}
			first := newWriter()
			for i := range 1000 {
				if _, err := first.Apply(b.Context(), service(i)); err != nil {
					b.Fatal(err)
				}
			}
			var next atomic.Int64
			next.Store(1000)
			limit := int64(1000 + b.N)
			b.ResetTimer()
			began := time.Now()
			var running sync.WaitGroup
			for range writers {
				w := newWriter()
				running.Go(func() {
					for i := next.Add(1); i <= limit; i = next.Add(1) {
						if err := add(b.Context(), w, service(int(i))); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			running.Wait()
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "writes/s")
		})
	}
}

// add plans and writes the change c like vipctl.
func add(ctx context.Context, w *Writer, c Change) error {
	p := NewPlan([]Change{c})
	if err := p.Read(ctx, w); err != nil {
		return err
	}
	if err := p.Write(ctx); err != nil {
		return err
	}
	return p.Steps[0].Err
}
