package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/test/wait"
)

// kernelWithin is the target: the time until every node has applied a changed endpoint.
const kernelWithin = 250 * time.Millisecond

// moves moves the endpoint of move n times. It returns the times from the start of each put until a
// connection at each node has reached the new server: all has the times of all nodes, and last the
// time of the last node. Changes happen at any time within a sync interval, after a pause of up to
// most.
func (w *world) moves(n int, most time.Duration) (all, last spread) {
	w.t.Helper()
	for range n {
		to := w.next()
		time.Sleep(rand.N(most)) // a part of the pattern of changes
		took := make([]time.Duration, len(w.nodes))
		began := time.Now()
		var waiting sync.WaitGroup
		for k, node := range w.nodes {
			waiting.Go(func() { took[k] = node.meets(fmt.Sprint("e", to), began) })
		}
		w.endpoint("move", "a", to)
		waiting.Wait()
		if slices.Contains(took, 0) {
			w.t.FailNow() // the reason was reported
		}
		slowest := time.Duration(0)
		for _, d := range took {
			all = append(all, d)
			slowest = max(slowest, d)
		}
		last = append(last, slowest)
	}
	return all, last
}

// next returns the next server of move, which differs from the present one.
func (w *world) next() int {
	w.moved++
	return 3 + w.moved%2
}

// stream changes endpoints of other services at a rate, while do runs. end is the time from the
// last change until every node has applied it.
func (w *world) stream(rate, services, endpoints int, do func()) (changes int, end time.Duration) {
	w.t.Helper()
	done := make(chan struct{})
	var last atomic.Int64
	var streaming sync.WaitGroup
	streaming.Go(func() {
		for {
			offset := w.streamed
			w.streamed += rate
			puts := change(w.t, w.client, rate, time.Second/time.Duration(rate), func(i int) (string, string) {
				i += offset
				service, endpoint := i*7%services, i%endpoints
				return endpointKey(service, endpoint), endpointText(service, endpoint, 2+i%997)
			})
			last.Store(puts.last)
			changes += rate
			select {
			case <-done:
				return
			default:
			}
		}
	})
	do()
	close(done)
	streaming.Wait()
	began := time.Now()
	w.settled(last.Load())
	return changes, time.Since(began)
}

// meets connects to move until a server answers, and returns the time since began. A connection to
// the previous server may end with its drain. It returns 0 if that server never answers.
func (n *node) meets(server string, began time.Time) time.Duration {
	for deadline := began.Add(wait.Scaled(patience)); ; {
		got, err := once(n.ns, moveVIP)
		now := time.Now()
		switch {
		case err == nil && got == server:
			return now.Sub(began)
		case now.After(deadline):
			n.t.Errorf("%s: answer = %q (%v), want %s", n.name, got, err, server)
			return 0
		}
		time.Sleep(time.Millisecond) // leaves CPU time to the change under test
	}
}
