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

// Counters sums up what the dataplanes of this process have counted, and those of earlier ones if Open was called. Its zero value is
// ready. All methods may be called by any goroutine.
type Counters struct {
	file file

	mu   sync.Mutex  // not held while a dataplane counts: the kernel may hang
	live []*counting // in use, or draining
	// gone is what was counted that no dataplane tells of any more; nil means nothing.
	gone *counters.Sums[counters.Backend, amount]
	// left is what the kernel had, of each mode and of conntrack, when it was last read.
	left    map[config.ModeName]map[counters.Backend]amount
	retries uint64 // of dataplanes that are gone
	// last is what was counted last, which nothing changes.
	last map[Port]dataplane.FrontendCount
	// reading is closed when the reading that is going on, since began, ends; nil means none is. Dataplanes begin and end in one.
	reading chan struct{}
	began   time.Time
}

// patience is how long a reading may take before Counts no longer waits for it.
const patience = 500 * time.Millisecond

// Port is a port of a service, by its name: counts are of a port, whatever the VIP.
type Port = counters.Port

// counting is a dataplane that counts. Counters.mu guards again.
type counting struct {
	dp   dataplane.Dataplane
	mode config.ModeName
	// again is what the kernel had when it was last read for the sums: a dataplane that finds it tells of it again. It is nil after
	// the first reading that has told of connections.
	again map[counters.Backend]amount
	// frozen are bytes of conntrack's flows as they were when another dataplane began to count them.
	frozen map[counters.Backend]amount
}

// conntrack names what all modes that read it find in the kernel.
const conntrack config.ModeName = "conntrack"

// alone waits until nobody else reads, begins or ends, and keeps others from it until done is called.
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

// Begin counts in a dataplane of a mode. One that is resumed goes on with what another of its kind has left in the kernel; what others
// have left there is removed.
func (t *Counters) Begin(mode config.ModeName, dp dataplane.Dataplane, resumed bool) {
	defer t.alone()()
	t.mu.Lock()
	c := &counting{dp: dp, mode: mode}
	if resumed {
		c.again = t.left[mode]
	}
	maps.DeleteFunc(t.left, func(of config.ModeName, _ map[counters.Backend]amount) bool { return of != conntrack })
	t.live = append(slices.Clip(t.live), c)
	begins := len(t.live) == 1
	t.mu.Unlock()
	if !begins { // else it may not know yet what an earlier process has left for it
		t.read()
	}
}

// passOnLocked has the flows of conntrack that a dataplane tells of be counted by a newer one from now on, which tells of the same: of those that
// are there, and of those that have ended since it began. It has read them later: what flows had by the first reading, they have in the second.
func (t *Counters) passOnLocked(c *counting, was sums, newer sums) {
	for k, had := range was.tracked {
		if kept, both := newer.tracked[k]; both {
			if c.frozen == nil {
				c.frozen = map[counters.Backend]amount{}
			}
			c.frozen[k] = was.all[k]
			ended := amount{In: newer.all[k].In - kept.In, Out: newer.all[k].Out - kept.Out}
			t.goneLocked().Add(k, had.least(kept).plus(ended).negative(), time.Now())
			delete(was.tracked, k)
		}
	}
}

// freeze has what another dataplane counts now be what it was.
func (c *counting) freeze(s sums) {
	for k, was := range c.frozen {
		now := s.all[k]
		now.In, now.Out = was.In, was.Out
		s.all[k] = now
		delete(s.tracked, k)
	}
}

// End keeps what a dataplane has counted, which is closed. What it has in the kernel stays if another of its kind is to go on with it.
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
		t.leaveLocked(conntrack, map[counters.Backend]amount{})
	}
	maps.Copy(t.left[conntrack], counted.tracked)
	t.retries += n
	t.mu.Unlock()
	t.read()
}

func (t *Counters) goneLocked() *counters.Sums[counters.Backend, amount] {
	if t.gone == nil {
		t.gone = counters.New(counters.Backend.Whole, amount.plus)
	}
	return t.gone
}

func (t *Counters) leaveLocked(mode config.ModeName, kept map[counters.Backend]amount) {
	if t.left == nil {
		t.left = map[config.ModeName]map[counters.Backend]amount{}
	}
	t.left[mode] = kept
}

// takeOffLocked has what a dataplane tells of again be counted once.
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

// Dataplanes returns those that count, the oldest first.
func (t *Counters) Dataplanes() (all []dataplane.Dataplane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.live {
		all = append(all, c.dp)
	}
	return all
}

// Counts returns the sums, or what they were last if a dataplane hangs: the kernel's dump, or a tool. To read them has dataplanes
// forget what is gone. The result belongs to all callers. A dataplane must know by then what an earlier process has left for it.
func (t *Counters) Counts() map[Port]dataplane.FrontendCount {
	t.mu.Lock()
	if t.reading == nil {
		t.reading, t.began = make(chan struct{}), time.Now()
		go func() { // it ends when the dataplanes have counted, which they bound
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

// Last reads the sums once more, after all dataplanes were closed, for the next process.
func (t *Counters) Last() {
	defer t.alone()()
	t.read()
}

// read reads what the dataplanes have counted, the oldest first, for alone's caller.
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

// sum puts together what the dataplanes that live have counted, and what is gone.
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
		kept = map[config.ModeName]map[counters.Backend]amount{}
	}
	tracked := map[counters.Backend]amount{}
	for i, c := range live {
		if kept[c.mode] = counted[i].kept; c.again != nil {
			kept[c.mode] = c.again
		}
		maps.Copy(tracked, counted[i].tracked)
		all = all.with(counted[i])
	}
	maps.Copy(tracked, t.left[conntrack]) // of what nobody tells now
	kept[conntrack] = tracked
	if all.all == nil {
		all.all = map[counters.Backend]amount{}
	}
	all.all = t.goneLocked().With(all.all, time.Now())
	return reading{all.all, kept}, all.ports()
}

// dialRetries returns the retries of dp; false means that the kernel connects.
func dialRetries(dp dataplane.Dataplane) (n uint64, counted bool) {
	d, dials := dataplane.As[dataplane.ReportsDials](dp)
	if !dials {
		return 0, false
	}
	return d.DialRetries(), true
}

// DialRetries returns the sum of retries; false means that no dataplane of this process has counted them.
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
