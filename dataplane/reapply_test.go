package dataplane_test

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/fake"
)

// asking is a dataplane whose first Observe asks the engine to apply every frontend again.
type asking struct {
	*fake.Dataplane
	observed int
	applied  map[balancer.Key]int
}

func (a *asking) Observe(ctx context.Context) (dataplane.Observation, error) {
	seen, err := a.Dataplane.Observe(ctx)
	a.observed++
	seen.ReapplyAll = a.observed == 1
	return seen, err
}

func (a *asking) Apply(ctx context.Context, batch []dataplane.Change) error {
	for _, c := range batch {
		a.applied[c.Key]++
	}
	return a.Dataplane.Apply(ctx, batch)
}

// TestReapplyAll starts an engine with a dataplane whose first Observe requests that all frontends
// be applied again, even though nothing differs. Each frontend must be applied once. None of these
// applications may count as a repair.
func TestReapplyAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := fake.NewKernel()
		var want balancer.Desired
		for i := range 5 {
			key := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Port: 80, Proto: balancer.TCP}
			want.Addresses = want.Addresses.Set(key.Addr, 1)
			want.Frontends = want.Frontends.Set(key, &balancer.Frontend{Key: key, Service: "s"})
		}
		for restart := range 2 {
			d := &asking{Dataplane: fake.New(kernel), applied: map[balancer.Key]int{}}
			e := dataplane.NewEngine(dataplane.Options{
				Dataplane: d, Host: fake.NewHost(kernel), Log: slog.New(slog.DiscardHandler), ResyncInterval: time.Minute,
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- e.Run(ctx) }()
			e.Set(want)
			time.Sleep(5 * time.Minute) // during this time, there are several full comparisons
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			for key := range want.Frontends.Keys() {
				if d.applied[key] != 1 {
					t.Errorf("start %d: %s was applied %d times, want once", restart, key, d.applied[key])
				}
			}
			if n := e.Status().Repairs; n != 0 || d.observed < 3 {
				t.Errorf("start %d: repairs = %d, comparisons = %d; want 0, at least 3", restart, n, d.observed)
			}
		}
	})
}
