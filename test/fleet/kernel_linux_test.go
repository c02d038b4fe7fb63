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

// kernelWithin is the target for the time until every node has applied a changed endpoint.
const kernelWithin = 250 * time.Millisecond

// moves changes the endpoint of the service "move" n times, after random pauses of at most the
// duration most. It measures how long it takes from the start of each put until a connection on a
// node reaches the new server. It returns the durations on all nodes, and the longest duration for
// each change.
func (w *world) moves(n int, most time.Duration) (all, last spread) {
	w.t.Helper()
	for range n {
		to := w.next()
		time.Sleep(rand.N(most)) // the pause is a part of the measured pattern
		took := make([]time.Duration, len(w.nodes))
		began := time.Now()
		var waiting sync.WaitGroup
		for k, node := range w.nodes {
			waiting.Go(func() { took[k] = node.meets(fmt.Sprint("e", to), began) })
		}
		w.endpoint("move", "a", to)
		waiting.Wait()
		if slices.Contains(took, 0) {
			w.t.FailNow() // meets has reported the reason
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

// next returns another server for the service "move".
func (w *world) next() int {
	w.moved++
	return 3 + w.moved%2
}

// stream changes endpoints of other services, rate times per second, while do runs. It returns the
// number of changes, and how long it took until every node had applied the last change.
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
	w.waitForRevision(last.Load())
	return changes, time.Since(began)
}

// meets connects to the service "move" until server answers, and returns the time since began, or 0
// if server never answers. A connection to the previous server may fail at the end of that server's
// drain.
func (n *node) meets(server string, began time.Time) time.Duration {
	for deadline := began.Add(wait.Scaled(patience)); ; {
		got, err := connectOnce(n.ns, moveVIP)
		now := time.Now()
		switch {
		case err == nil && got == server:
			return now.Sub(began)
		case now.After(deadline):
			n.t.Errorf("%s: answer = %q (%v), want %s", n.name, got, err, server)
			return 0
		}
		time.Sleep(time.Millisecond) // leaves CPU time for applying the change
	}
}
