package userspace

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// TestFlowsOfOneServiceDoNotStarveAnother uses up the budget for flows with the flows of one
// service. Another service must nevertheless get its share of the flows.
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
				t.Fatalf("error of a client of %s = %v, want nil", f.Key, err)
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
	ask(f, 20) // the other service has fewer flows than its share, so it must keep them
	if got, want := count(), "web 9, other 1"; got != want {
		t.Errorf("flows after more clients of the first service = %s, want %s", got, want)
	}
	ask(g, 20) // its share is half of all flows
	if got, want := count(), "web 5, other 5"; got != want {
		t.Errorf("flows after many clients of both services = %s, want %s", got, want)
	}
}

// TestFlowBudgetLaw takes and returns places for flows at random. The method yields must always
// return the frontend that has the most flows.
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
		f := all[min(r.IntN(len(all)), r.IntN(len(all)))] // this makes some frontends have more flows than others
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
					t.Fatalf("seed %d, step %d: yields returns a frontend although no frontend has flows, want nil", seed, step)
				}
			case model[f] == most && got != f:
				t.Fatalf("seed %d, step %d: yields returns another frontend although the given frontend has the most flows (%d), want the given frontend", seed, step, most)
			case model[got] != most:
				t.Fatalf("seed %d, step %d: yields returns a frontend with %d flows, want one with %d flows", seed, step, model[got], most)
			}
		}
	}
}
