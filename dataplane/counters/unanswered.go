package counters

import (
	"sync"
	"time"

	"vipd/dataplane"
)

// Unanswered counts connections that backends did not answer. It is safe for concurrent use. The
// zero value is ready to use.
type Unanswered struct {
	mu   sync.Mutex // guards sums
	sums *Sums[BackendKey, uint64]
}

// Add counts an unanswered connection.
func (u *Unanswered) Add(k BackendKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sums == nil {
		u.sums = New(BackendKey.Whole, func(a, b uint64) uint64 { return a + b })
	}
	u.sums.Add(k, 1, time.Now())
}

// AddTo adds u's counts to the failures in counts, and returns the result. It adds backends that
// are missing from counts, and remembers the counts of removed backends in the same way as [Sums].
func (u *Unanswered) AddTo(counts []dataplane.FrontendCount) []dataplane.FrontendCount {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sums == nil {
		return counts
	}
	live, ports := map[BackendKey]uint64{}, map[Port]int{}
	for i, f := range counts {
		port := Port{Service: f.Service, Name: f.Port}
		ports[port] = i
		for _, b := range f.Backends {
			live[BackendKey{Port: port, Addr: b.Backend}] = 0
		}
	}
	sums := u.sums.With(live, time.Now())
	for port, i := range ports {
		f := &counts[i]
		for j := range f.Backends {
			b := &f.Backends[j]
			k := BackendKey{Port: port, Addr: b.Backend}
			b.Failures, f.Failures = b.Failures+sums[k], f.Failures+sums[k]
			delete(sums, k)
		}
	}
	for k, n := range sums {
		i, there := ports[k.Port]
		switch {
		case n == 0: // another entry in counts has this port
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
