package traffic

import (
	"maps"
	"slices"
	"sync"
	"time"

	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/dataplane/counters"
)

// Counters sums the counts of this process's dataplanes, and of previous processes if Open was
// called. The zero value is ready to use. Its methods are safe for concurrent use.
type Counters struct {
	file file

	mu   sync.Mutex  // not held while a dataplane counts, because the kernel may hang
	live []*counting // dataplanes that serve or drain
	// gone holds the counts that no dataplane reports any longer. It may be nil.
	gone *counters.Sums[counters.BackendKey, amount]
	// left holds the counts in kernel objects that no dataplane currently reports, as last read.
	// The key is the mode or conntrack.
	left    map[config.ModeName]map[counters.BackendKey]amount
	retries uint64 // retries of closed dataplanes
	// last is the latest result, which is immutable.
	last map[Port]dataplane.FrontendCount
	// reading is closed when the current reading, which started at began, completes. It is nil if
	// no reading is in progress. Dataplanes may start and end during a reading.
	reading chan struct{}
	began   time.Time
}

// patience limits how long Counts waits for a reading.
const patience = 500 * time.Millisecond

// Port is a port of a service, identified by its name. Counts are kept per port, not per VIP.
type Port = counters.Port

// counting is a dataplane that counts. Counters.mu guards the field called again.
type counting struct {
	dp   dataplane.Dataplane
	mode config.ModeName
	// again holds the counts of the kernel objects that the dataplane found, as last read before it
	// started. The dataplane reports these counts again, so they must be subtracted. The field is
	// nil after the first reading that includes connections.
	again map[counters.BackendKey]amount
	// frozen holds the bytes of conntrack's flows when another dataplane started to count these
	// flows.
	frozen map[counters.BackendKey]amount
}

// conntrack is the key of counts that all modes read from the kernel's connection tracking.
const conntrack config.ModeName = "conntrack"

// alone waits for exclusive access. Until done is called, no counts can be read, and no dataplane
// can be added or removed.
func (t *Counters) alone() (done func()) {
	for {
		t.mu.Lock()
		reading := t.reading
		if reading == nil {
			t.reading, t.began = make(chan struct{}), time.Now()
			t.mu.Unlock()
			return t.readingEnds
		}
		t.mu.Unlock()
		<-reading
	}
}

func (t *Counters) readingEnds() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.reading)
	t.reading = nil
}

// Begin adds a dataplane of a mode to the dataplanes that count. The argument resumed reports
// whether the dataplane continues with the kernel objects of its predecessor. Otherwise these
// objects are removed.
func (t *Counters) Begin(mode config.ModeName, dp dataplane.Dataplane, resumed bool) {
	defer t.alone()()
	t.mu.Lock()
	c := &counting{dp: dp, mode: mode}
	if resumed {
		c.again = t.left[mode]
	}
	maps.DeleteFunc(t.left, func(of config.ModeName, _ map[counters.BackendKey]amount) bool { return of != conntrack })
	t.live = append(slices.Clip(t.live), c)
	begins := len(t.live) == 1
	t.mu.Unlock()
	if !begins { // otherwise the dataplane may not have found the previous process's objects yet
		t.read()
	}
}

// passOnLocked moves the counts of conntrack's flows from a dataplane to a newer dataplane that
// reports the same flows: existing flows, and flows that have ended since it started. The newer
// dataplane has read them later, so its counts include the older counts.
func (t *Counters) passOnLocked(c *counting, was sums, newer sums) {
	for k, had := range was.tracked {
		if kept, both := newer.tracked[k]; both {
			if c.frozen == nil {
				c.frozen = map[counters.BackendKey]amount{}
			}
			c.frozen[k] = was.all[k]
			ended := amount{In: newer.all[k].In - kept.In, Out: newer.all[k].Out - kept.Out}
			t.goneLocked().Add(k, had.least(kept).plus(ended).negative(), time.Now())
			delete(was.tracked, k)
		}
	}
}

// freeze restores the frozen values of counts that another dataplane now reports.
func (c *counting) freeze(s sums) {
	for k, was := range c.frozen {
		now := s.all[k]
		now.In, now.Out = was.In, was.Out
		s.all[k] = now
		delete(s.tracked, k)
	}
}

// End stores the counts of a closed dataplane. The argument stays reports whether its kernel
// objects remain for another dataplane of its kind.
func (t *Counters) End(dp dataplane.Dataplane, stays bool) {
	defer t.alone()()
	t.mu.Lock()
	i := slices.IndexFunc(t.live, func(c *counting) bool { return c.dp == dp })
	if i < 0 {
		t.mu.Unlock()
		return
	}
	c := t.live[i]
	t.mu.Unlock() // the kernel may hang
	counted := sumsOf(c.dp.Counters())
	n, _ := dialRetries(dp)
	t.mu.Lock()
	c.freeze(counted)
	t.takeOffLocked(c, counted)
	t.live = slices.Concat(t.live[:i], t.live[i+1:])
	for k, a := range counted.all {
		t.goneLocked().Add(k, a, time.Now())
	}
	if stays {
		t.leaveLocked(c.mode, counted.kept)
	}
	if t.left[conntrack] == nil {
		t.leaveLocked(conntrack, map[counters.BackendKey]amount{})
	}
	maps.Copy(t.left[conntrack], counted.tracked)
	t.retries += n
	t.mu.Unlock()
	t.read()
}

func (t *Counters) goneLocked() *counters.Sums[counters.BackendKey, amount] {
	if t.gone == nil {
		t.gone = counters.New(counters.BackendKey.Whole, amount.plus)
	}
	return t.gone
}

func (t *Counters) leaveLocked(mode config.ModeName, kept map[counters.BackendKey]amount) {
	if t.left == nil {
		t.left = map[config.ModeName]map[counters.BackendKey]amount{}
	}
	t.left[mode] = kept
}

// takeOffLocked subtracts the counts that a dataplane reports again.
func (t *Counters) takeOffLocked(c *counting, first sums) {
	if first.connections {
		for k, had := range c.again {
			t.goneLocked().Add(k, had.least(first.all[k]).negative(), time.Now())
		}
		c.again = nil
	}
	for k := range first.tracked {
		if had, left := t.left[conntrack][k]; left {
			t.goneLocked().Add(k, had.least(first.all[k]).negative(), time.Now())
			delete(t.left[conntrack], k)
		}
	}
}

// Dataplanes returns the dataplanes that count, oldest first.
func (t *Counters) Dataplanes() (all []dataplane.Dataplane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.live {
		all = append(all, c.dp)
	}
	return all
}

// Counts returns the sums. If a dataplane hangs while it reads the kernel, it returns the last
// sums. When dataplanes read their counts, they drop removed objects. All callers share the result.
// Counts must not be called before dataplanes have found the previous process's objects.
func (t *Counters) Counts() map[Port]dataplane.FrontendCount {
	t.mu.Lock()
	if t.reading == nil {
		t.reading, t.began = make(chan struct{}), time.Now()
		go func() { // this goroutine ends when the dataplanes have read their counts; each has a timeout
			defer t.readingEnds()
			t.read()
		}()
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

// Last reads the sums for the next process, after all dataplanes have been closed.
func (t *Counters) Last() {
	defer t.alone()()
	t.read()
}

// read reads the dataplanes' counts, oldest dataplane first. The caller must have exclusive access
// (see [Counters.alone]).
func (t *Counters) read() {
	t.mu.Lock()
	live := t.live
	t.mu.Unlock()
	counted := make([]sums, len(live))
	for i, c := range live {
		counted[i] = sumsOf(c.dp.Counters())
	}
	now, shown := t.sum(live, counted)
	t.file.keep(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = shown
}

// sum returns the sums over live and closed dataplanes.
func (t *Counters) sum(live []*counting, counted []sums) (reading, map[Port]dataplane.FrontendCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, c := range live {
		c.freeze(counted[i])
		t.takeOffLocked(c, counted[i])
	}
	for i, c := range live {
		for _, newer := range counted[i+1:] {
			t.passOnLocked(c, counted[i], newer)
		}
	}
	var all sums
	kept := maps.Clone(t.left)
	if kept == nil {
		kept = map[config.ModeName]map[counters.BackendKey]amount{}
	}
	tracked := map[counters.BackendKey]amount{}
	for i, c := range live {
		if kept[c.mode] = counted[i].kept; c.again != nil {
			kept[c.mode] = c.again
		}
		maps.Copy(tracked, counted[i].tracked)
		all = all.with(counted[i])
	}
	maps.Copy(tracked, t.left[conntrack]) // the part that no dataplane currently reports
	kept[conntrack] = tracked
	if all.all == nil {
		all.all = map[counters.BackendKey]amount{}
	}
	all.all = t.goneLocked().With(all.all, time.Now())
	return reading{all.all, kept}, all.ports()
}

// dialRetries returns how often dp retried a dial. counted is false if the kernel makes the
// connections, because it never retries.
func dialRetries(dp dataplane.Dataplane) (n uint64, counted bool) {
	d, dials := dataplane.As[dataplane.ReportsDials](dp)
	if !dials {
		return 0, false
	}
	return d.DialRetries(), true
}

// DialRetries returns the sum of all retries. counted is false if no dataplane of this process has
// counted retries.
func (t *Counters) DialRetries() (n uint64, counted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, counted = t.retries, t.retries > 0
	for _, c := range t.live {
		more, counts := dialRetries(c.dp)
		n, counted = n+more, counted || counts
	}
	return n, counted
}
