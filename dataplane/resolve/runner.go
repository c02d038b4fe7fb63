package resolve

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
)

// Runner repeats lookups. All methods may be called by any goroutine.
type Runner struct {
	o    RunnerOptions
	wake wake.Signal   // holds a token: other lookups are wanted
	free chan struct{} // limits simultaneous lookups

	mu      sync.Mutex // guards the fields below
	wanted  map[balancer.Lookup]want
	set     int // the calls of Set
	answers snap.Map[balancer.Lookup, *balancer.Resolution]
}

// want is a wanted lookup. A lookup that was removed and added again is another want.
type want struct {
	interval time.Duration
	added    int // by this call of Set
}

// RunnerOptions configures a Runner.
type RunnerOptions struct {
	// Answer looks something up, see [Client.Answer].
	Answer func(ctx context.Context, l balancer.Lookup, last []balancer.Member) Answer
	// Changed is called when Answers has changed. It must not block.
	Changed func()
	// Kept are the answers of an earlier run. They count until the first good answer.
	Kept snap.Map[balancer.Lookup, *balancer.Resolution]
}

// maxLookups limits simultaneous lookups, each of which may have some sockets.
const maxLookups = 64

// The limits of the time between two lookups. After a failure it doubles from the minimum.
const (
	minPause    = time.Second
	maxPause    = time.Hour
	failedPause = 30 * time.Second
)

// NewRunner returns a Runner without lookups.
func NewRunner(o RunnerOptions) *Runner {
	return &Runner{o: o, wake: wake.New(), free: make(chan struct{}, maxLookups), answers: o.Kept}
}

// Demand is the lookups that a Runner repeats.
type Demand struct {
	// Lookups are the lookups, each with the maximum time between two; 0 means that only the answer
	// determines it.
	Lookups map[balancer.Lookup]time.Duration
	// Former are the lookups that new ones replace. Their members stay until the first good answer.
	Former map[balancer.Lookup]balancer.Lookup
	// Incomplete means that further lookups may be wanted soon, so no answer is forgotten.
	Incomplete bool
}

// Set replaces the lookups. Answers of other lookups are forgotten. A new lookup starts with the
// known members of its name, or of the lookup that it replaces.
func (r *Runner) Set(d Demand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set++
	before, known := r.wanted, r.answers
	r.wanted = make(map[balancer.Lookup]want, len(d.Lookups))
	for l, interval := range d.Lookups {
		added := r.set
		if w, ok := before[l]; ok {
			added = w.added
		}
		r.wanted[l] = want{interval, added}
		if !known.Has(l) {
			r.answers = r.answers.Set(l, firstState(known, l, d.Former[l]))
		}
	}
	for l := range known.Keys() {
		if _, ok := r.wanted[l]; !ok && !d.Incomplete {
			r.answers = r.answers.Delete(l)
		}
	}
	r.wake.Send()
}

// firstState returns the state of a new lookup before its first answer: the known members of the
// same name, maybe for other families, or of the lookup that it replaces.
func firstState(known snap.Map[balancer.Lookup, *balancer.Resolution], l, former balancer.Lookup) *balancer.Resolution {
	unwanted := func(m balancer.Member) bool {
		return l.Kind != balancer.ProgramLookup && (m.Addr.Is4() && !l.V4 || m.Addr.Is6() && !l.V6)
	}
	for _, source := range []balancer.Lookup{l, former} {
		var members []balancer.Member
		for families := range 4 {
			source.V4, source.V6 = families&1 != 0, families&2 != 0
			if a := known.At(source); a != nil {
				members = append(members, a.Members...)
			}
		}
		if members = slices.DeleteFunc(members, unwanted); len(members) > 0 {
			slices.SortFunc(members, balancer.Member.Compare)
			return &balancer.Resolution{Members: slices.Compact(members)}
		}
	}
	return &balancer.Resolution{}
}

// Answers returns the state of each lookup.
func (r *Runner) Answers() snap.Map[balancer.Lookup, *balancer.Resolution] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answers
}

// part is a running lookup.
type part struct {
	want
	stop func()
}

// Run repeats the lookups until ctx ends.
func (r *Runner) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	parts := map[balancer.Lookup]part{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		r.mu.Lock()
		wanted := r.wanted
		r.mu.Unlock()
		maps.DeleteFunc(parts, func(l balancer.Lookup, p part) bool {
			if w, ok := wanted[l]; ok && w == p.want {
				return false
			}
			p.stop()
			return true
		})
		for l, w := range wanted {
			if _, runs := parts[l]; runs {
				continue
			}
			repeating, stop := context.WithCancel(ctx)
			parts[l] = part{w, stop}
			running.Go(func() { r.repeat(repeating, l, w.interval) })
		}
	}
}

// repeat repeats one lookup until ctx ends.
func (r *Runner) repeat(ctx context.Context, l balancer.Lookup, interval time.Duration) {
	if interval == 0 {
		interval = maxPause
	}
	retry := minPause
	for {
		select {
		case <-ctx.Done():
			return
		case r.free <- struct{}{}:
		}
		a := r.o.Answer(ctx, l, r.last(l))
		<-r.free
		if ctx.Err() != nil {
			return
		}
		r.publish(l, &a.Resolution)
		pause := min(max(a.TTL, minPause), interval)
		if a.Failure != "" {
			pause, retry = min(retry, interval), min(2*retry, failedPause)
		} else {
			retry = minPause
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
	}
}

// last returns the last good answer.
func (r *Runner) last(l balancer.Lookup) []balancer.Member {
	if last := r.Answers().At(l); last != nil {
		return last.Members
	}
	return nil
}

// publish stores an answer. An equal one changes nothing.
func (r *Runner) publish(l balancer.Lookup, a *balancer.Resolution) {
	r.mu.Lock()
	_, wanted := r.wanted[l]
	changed := wanted && !a.Equal(r.answers.At(l))
	if changed {
		r.answers = r.answers.Set(l, a)
	}
	r.mu.Unlock()
	if changed {
		r.o.Changed()
	}
}
