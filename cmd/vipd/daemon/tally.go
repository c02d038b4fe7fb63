package daemon

import (
	"net/netip"
	"slices"
	"sync"

	"vipd/dataplane"
)

// tally sums up what the dataplanes of this process have counted, also those that are gone, so that no counter ever goes
// back.
type tally struct {
	mu      sync.Mutex
	live    []dataplane.Dataplane // in use, or draining
	gone    map[portKey]dataplane.FrontendCount
	retries uint64 // of dataplanes that are gone
}

// retrier is a dataplane that counts attempts to reach an endpoint that went on to another.
type retrier interface{ DialRetries() uint64 }

// begin counts in a dataplane.
func (t *tally) begin(dp dataplane.Dataplane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live = append(t.live, dp)
}

// end keeps what a dataplane has counted, which is closed.
func (t *tally) end(dp dataplane.Dataplane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live = slices.DeleteFunc(t.live, func(d dataplane.Dataplane) bool { return d == dp })
	if t.gone == nil {
		t.gone = map[portKey]dataplane.FrontendCount{}
	}
	if c, ok := dp.(dataplane.Counters); ok {
		for _, f := range c.Counters() {
			for i := range f.Backends {
				f.Backends[i].Active = 0
			}
			addCount(t.gone, f)
		}
	}
	if r, ok := dp.(retrier); ok {
		t.retries += r.DialRetries()
	}
}

// counts returns the sums.
func (t *tally) counts() map[portKey]dataplane.FrontendCount {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[portKey]dataplane.FrontendCount, len(t.gone))
	for _, f := range t.gone {
		addCount(all, f)
	}
	for _, dp := range t.live {
		if c, ok := dp.(dataplane.Counters); ok {
			for _, f := range c.Counters() {
				addCount(all, f)
			}
		}
	}
	return all
}

// dialRetries returns the sum of retries; false: no dataplane of this process has counted them.
func (t *tally) dialRetries() (n uint64, counted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, counted = t.retries, t.retries > 0
	for _, dp := range t.live {
		if r, ok := dp.(retrier); ok {
			n, counted = n+r.DialRetries(), true
		}
	}
	return n, counted
}

// addCount adds the counts of one port of a service.
func addCount(to map[portKey]dataplane.FrontendCount, f dataplane.FrontendCount) {
	k := portKey{f.Service, f.Port}
	sum, ok := to[k]
	if !ok {
		to[k] = f
		return
	}
	sum.Connections, sum.In, sum.Out = sum.Connections+f.Connections, sum.In+f.In, sum.Out+f.Out
	at := map[netip.AddrPort]int{}
	sum.Backends = slices.Clone(sum.Backends)
	for i, b := range sum.Backends {
		at[b.Backend] = i
	}
	for _, b := range f.Backends {
		i, ok := at[b.Backend]
		if !ok {
			sum.Backends = append(sum.Backends, b)
			continue
		}
		sum.Backends[i].Connections += b.Connections
		sum.Backends[i].Active += b.Active
	}
	to[k] = sum
}
