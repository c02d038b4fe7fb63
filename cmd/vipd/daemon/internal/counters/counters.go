package counters

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// Process sums up what the dataplanes of this process have counted. Its zero value is ready. All methods may be called by any
// goroutine.
type Process struct {
	mu      sync.Mutex // not held while a dataplane counts: the kernel may hang
	live    []counting // in use, or draining
	gone    map[Port]dataplane.FrontendCount
	retries uint64 // of dataplanes that are gone
	// last is what was counted last, which nothing changes.
	last map[Port]dataplane.FrontendCount
	// reading is closed when the reading that is going on, since began, ends; nil means none is.
	reading chan struct{}
	began   time.Time
}

// patience is how long a reading may take before Counts no longer waits for it.
const patience = 500 * time.Millisecond

// Port is a port of a service, by its name: counts are of a port, whatever the VIP.
type Port struct {
	Service balancer.Name
	Port    string
}

// counting is a dataplane that counts, with what it had counted when it began: what the one before it has told of already.
type counting struct {
	dataplane.Dataplane
	from map[Port]dataplane.FrontendCount
}

func (c counting) counts() map[Port]dataplane.FrontendCount {
	all := map[Port]dataplane.FrontendCount{}
	for _, f := range c.Counters() {
		addCount(all, f)
	}
	for k, from := range c.from {
		if f, ok := all[k]; ok {
			all[k] = since(f, from)
		}
	}
	return all
}

// Begin counts in a dataplane. One that has resumed what another of its kind left goes on with the kernel's counters.
func (t *Process) Begin(dp dataplane.Dataplane, resumed bool) {
	c := counting{Dataplane: dp}
	if resumed {
		c.from = c.counts()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live = append(t.live, c)
}

// End keeps what a dataplane has counted, which is closed.
func (t *Process) End(dp dataplane.Dataplane) {
	is := func(c counting) bool { return c.Dataplane == dp }
	t.mu.Lock()
	i := slices.IndexFunc(t.live, is)
	if i < 0 {
		t.mu.Unlock()
		return
	}
	c := t.live[i]
	t.mu.Unlock()
	counts := c.counts()
	n, _ := dp.DialRetries()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone == nil {
		t.gone = map[Port]dataplane.FrontendCount{}
	}
	t.live = slices.DeleteFunc(slices.Clone(t.live), is)
	for _, f := range counts {
		for i := range f.Backends {
			f.Backends[i].Active = 0
		}
		addCount(t.gone, f)
	}
	t.retries += n
}

// Dataplanes returns those that count, the oldest first.
func (t *Process) Dataplanes() (all []dataplane.Dataplane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.live {
		all = append(all, c.Dataplane)
	}
	return all
}

// Counts returns the sums, or what they were last if a dataplane hangs: the kernel's dump, or a tool. To read them has dataplanes
// forget what is gone. The result belongs to all callers.
func (t *Process) Counts() map[Port]dataplane.FrontendCount {
	t.mu.Lock()
	if t.reading == nil {
		t.reading, t.began = make(chan struct{}), time.Now()
		go t.read() // it ends when the dataplanes have counted, which they bound
	}
	reading, left := t.reading, patience-time.Since(t.began)
	t.mu.Unlock()
	select {
	case <-reading:
	case <-time.After(left):
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		return map[Port]dataplane.FrontendCount{}
	}
	return t.last
}

func (t *Process) read() {
	t.mu.Lock()
	live, all := t.live, make(map[Port]dataplane.FrontendCount, len(t.gone))
	for _, f := range t.gone {
		addCount(all, f)
	}
	t.mu.Unlock()
	for _, c := range live {
		for _, f := range c.counts() {
			addCount(all, f)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = all
	close(t.reading)
	t.reading = nil
}

// DialRetries returns the sum of retries; false: no dataplane of this process has counted them.
func (t *Process) DialRetries() (n uint64, counted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, counted = t.retries, t.retries > 0
	for _, c := range t.live {
		more, counts := c.Dataplane.DialRetries()
		n, counted = n+more, counted || counts
	}
	return n, counted
}

// since returns what f has counted since it was at from. Counts go back only where a dataplane has forgotten what was gone
// for long, and begins anew with it: then all of it has come since.
func since(f, from dataplane.FrontendCount) dataplane.FrontendCount {
	f.Connections, f.In, f.Out = more(f.Connections, from.Connections), more(f.In, from.In), more(f.Out, from.Out)
	f.Failures = more(f.Failures, from.Failures)
	before := map[netip.AddrPort]dataplane.BackendCount{}
	for _, b := range from.Backends {
		before[b.Backend] = b
	}
	f.Backends = slices.Clone(f.Backends)
	for i, b := range f.Backends {
		was := before[b.Backend]
		f.Backends[i].Connections, f.Backends[i].Failures = more(b.Connections, was.Connections), more(b.Failures, was.Failures)
	}
	return f
}

func more(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// addCount adds the counts of one port of a service.
func addCount(to map[Port]dataplane.FrontendCount, f dataplane.FrontendCount) {
	k := Port{f.Service, f.Port}
	sum, ok := to[k]
	if !ok {
		to[k] = f
		return
	}
	sum.Connections, sum.In, sum.Out, sum.Failures = sum.Connections+f.Connections, sum.In+f.In, sum.Out+f.Out, sum.Failures+f.Failures
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
		sum.Backends[i].Failures += b.Failures
	}
	to[k] = sum
}
