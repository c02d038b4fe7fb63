package balancer_test

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"vipd/balancer"
)

// TestOverrideLaws has random overrides said one after the other of an endpoint's address and of one of its ports: what
// holds is what was said last of each thing, nothing that the definition says anyway is kept, and nothing else is lost.
func TestOverrideLaws(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		defined := []*balancer.Endpoint{{Weight: r.IntN(3), Draining: r.IntN(2) == 0}}
		var wide, port balancer.Override // as kept
		weight, draining := defined[0].Weight, defined[0].Draining
		for range 20 {
			change := anyOverride(r)
			if r.IntN(2) == 0 {
				port = valueOf(port.Under(change))
				wide = valueOf(change.Over(wide, balancer.Override{}, defined))
			} else {
				port = valueOf(change.Over(port, wide, defined))
			}
			switch {
			case change.Weight == nil:
			case *change.Weight == balancer.TakenBack:
				weight = *first(wide.Weight, &defined[0].Weight)
			default:
				weight = *change.Weight
			}
			if change.Draining != nil {
				draining = *change.Draining
			}
			gotWeight, gotDraining := *first(port.Weight, wide.Weight, &defined[0].Weight), *first(port.Draining, wide.Draining, &defined[0].Draining)
			if gotWeight != weight || gotDraining != draining {
				t.Fatalf("seed %d: after %+v weight %d, draining %v hold; want %d, %v", seed, change, gotWeight, gotDraining, weight, draining)
			}
		}
		back := balancer.Override{Weight: &defined[0].Weight, Draining: &defined[0].Draining}
		port = valueOf(port.Under(back))
		kept := back.Over(wide, balancer.Override{}, defined)
		if !defined[0].Draining && (kept != nil || !reflect.DeepEqual(port, balancer.Override{})) {
			t.Fatalf("seed %d: the definition was said again, and %+v of the address, %+v of the port is kept", seed, kept, port)
		}
	}
}

// anyOverride speaks of the weight, of draining or of both.
func anyOverride(r *rand.Rand) (o balancer.Override) {
	what := 1 + r.IntN(3)
	if what&1 != 0 {
		w := r.IntN(4) + balancer.TakenBack
		o.Weight = &w
	}
	if what&2 != 0 {
		d := r.IntN(2) == 0
		o.Draining = &d
	}
	return o
}

func valueOf(o *balancer.Override) balancer.Override {
	if o == nil {
		return balancer.Override{}
	}
	return *o
}

// first returns the first that is there.
func first[T any](of ...*T) *T {
	for _, v := range of {
		if v != nil {
			return v
		}
	}
	return nil
}

func TestOverrideLapses(t *testing.T) {
	now := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		expires time.Time
		want    bool
	}{{time.Time{}, false}, {now.Add(1), false}, {now, true}, {now.Add(-1), true}} {
		if got := (&balancer.Override{Expires: c.expires}).Lapsed(now); got != c.want {
			t.Errorf("expires %v: lapsed %v at %v", c.expires, got, now)
		}
	}
}
