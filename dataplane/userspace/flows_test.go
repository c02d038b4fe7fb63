package userspace

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// TestFlowsOfOneServiceDoNotStarveAnother uses up the flow budget with one service's flows. Another
// service must still get its share.
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
				t.Fatalf("client of %s: error = %v, want nil", f.Key, err)
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
		t.Errorf("flows after the first client of the other service = %s, want %s", got, want)
	}
	ask(f, 20) // the other service uses less than its share, so it must keep its flows
	if got, want := count(), "web 9, other 1"; got != want {
		t.Errorf("flows after more clients of the first service = %s, want %s", got, want)
	}
	ask(g, 20) // its share is half of all flows
	if got, want := count(), "web 5, other 5"; got != want {
		t.Errorf("flows after many clients of both services = %s, want %s", got, want)
	}
}

// TestFlowBudgetLaw adds and removes flows at random. yields must always return the frontend with
// the most flows.
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
		f := all[min(r.IntN(len(all)), r.IntN(len(all)))] // gives some frontends more flows than others
		switch {
		case r.IntN(3) > 0:
			if got, want := b.take(f), sum < 50; got != want {
				t.Fatalf("seed %d, step %d: take = %v, want %v", seed, step, got, want)
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
					t.Fatalf("seed %d, step %d: yields returns a frontend, want nil because there are no flows", seed, step)
				}
			case model[f] == most && got != f:
				t.Fatalf("seed %d, step %d: yields(f) returns another frontend, want f because it has the most flows (%d)", seed, step, most)
			case model[got] != most:
				t.Fatalf("seed %d, step %d: yields returns a frontend with %d flows, want %d flows", seed, step, model[got], most)
			}
		}
	}
}
