package counters

import (
	"sync"
	"time"

	"vipd/dataplane"
)

// Unanswered counts connections that backends did not answer. It is safe for several goroutines. Its zero value is ready.
type Unanswered struct {
	mu   sync.Mutex // guards sums
	sums *Sums[Backend, uint64]
}

// Add counts a connection.
func (u *Unanswered) Add(k Backend) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sums == nil {
		u.sums = New(Backend.Whole, func(a, b uint64) uint64 { return a + b })
	}
	u.sums.Add(k, 1, time.Now())
}

// AddTo adds the counts to the failures of the backends in counts, and returns the result. A count of a backend that is not in
// counts is added there, and is remembered as Sums does.
func (u *Unanswered) AddTo(counts []dataplane.FrontendCount) []dataplane.FrontendCount {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sums == nil {
		return counts
	}
	live, ports := map[Backend]uint64{}, map[Port]int{}
	for i, f := range counts {
		port := Port{Service: f.Service, Name: f.Port}
		ports[port] = i
		for _, b := range f.Backends {
			live[Backend{Port: port, Addr: b.Backend}] = 0
		}
	}
	sums := u.sums.With(live, time.Now())
	for port, i := range ports {
		f := &counts[i]
		for j := range f.Backends {
			b := &f.Backends[j]
			k := Backend{Port: port, Addr: b.Backend}
			b.Failures, f.Failures = b.Failures+sums[k], f.Failures+sums[k]
			delete(sums, k)
		}
	}
	for k, n := range sums {
		i, there := ports[k.Port]
		switch {
		case n == 0: // another entry of counts has this port again
			continue
		case !there:
			i = len(counts)
			ports[k.Port] = i
			counts = append(counts, dataplane.FrontendCount{Service: k.Service, Port: k.Port.Name, BytesOnly: true})
		}
		f := &counts[i]
		if f.Failures += n; k.Addr.IsValid() {
			f.Backends = append(f.Backends, dataplane.BackendCount{Backend: k.Addr, Failures: n})
		}
	}
	return counts
}
