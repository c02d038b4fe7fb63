package userspace

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// TestFlowsOfOneServiceDoNotStarveAnother fills the flow budget from one service. Another
// service still gets its share.
func TestFlowsOfOneServiceDoNotStarveAnother(t *testing.T) {
	a := udpServer(t, "127.0.0.1:0", "a")
	d := start(t, Options{maxFlows: 10})
	f, g := frontendAt("127.77.9.6:9000/udp", a), frontendAt("127.77.9.7:9000/udp", a)
	g.Service = "other"
	d.apply(f, g)
	ask := func(f *balancer.Frontend, n int) {
		t.Helper()
		for range n {
			if _, err := askUDP(udpClient(t, f.AddrPort()), "x"); err != nil {
				t.Fatalf("a client of %s: %v", f.Key, err)
			}
		}
	}
	count := func() string {
		of := map[balancer.Name]int{}
		list, _ := dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{})
		for _, c := range list {
			of[c.Service]++
		}
		return fmt.Sprintf("web %d, other %d", of["web"], of["other"])
	}
	ask(f, 10)
	ask(g, 1)
	if got, want := count(), "web 9, other 1"; got != want {
		t.Errorf("after the first client of the other service got %s, want %s", got, want)
	}
	ask(f, 20) // what has few keeps them
	if got, want := count(), "web 9, other 1"; got != want {
		t.Errorf("after more clients of the first service got %s, want %s", got, want)
	}
	ask(g, 20) // half of them is what it can have
	if got, want := count(), "web 5, other 5"; got != want {
		t.Errorf("after many clients of both got %s, want %s", got, want)
	}
}

// TestFlowBudgetLaw holds that whoever has the most flows yields, whatever happened before, and that nobody else does.
func TestFlowBudgetLaw(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	b := newFlowBudget(50, 1000, 0)
	all := make([]*frontend, 8)
	model := map[*frontend]int{}
	for i := range all {
		all[i] = &frontend{}
	}
	sum := 0
	for step := range 20_000 {
		f := all[min(r.IntN(len(all)), r.IntN(len(all)))] // some are busier
		switch {
		case r.IntN(3) > 0:
			if got, want := b.take(f), sum < 50; got != want {
				t.Fatalf("seed %d, step %d: take got %v, want %v", seed, step, got, want)
			} else if got {
				model[f]++
				sum++
			}
		case model[f] > 0:
			b.give(f)
			model[f]--
			sum--
		}
		most := 0
		for _, n := range model {
			most = max(most, n)
		}
		for _, f := range all {
			got := b.yields(f)
			switch {
			case sum == 0:
				if got != nil {
					t.Fatalf("seed %d, step %d: somebody yields, and nobody has any", seed, step)
				}
			case model[f] == most && got != f:
				t.Fatalf("seed %d, step %d: another yields for one that has the most, %d", seed, step, most)
			case model[got] != most:
				t.Fatalf("seed %d, step %d: one with %d yields, want one with %d", seed, step, model[got], most)
			}
		}
	}
}
