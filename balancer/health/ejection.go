package health

import (
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// EjectionRules say when failed connects eject an endpoint, and for how long.
type EjectionRules struct {
	// Failures is how many connects in a row must fail. An endpoint that comes back is on probation: until it has taken a
	// connection, one failure ejects it again.
	Failures int
	// Apart is how long after a failure another one counts: what fails at the same moment tells the same. With Failures, it
	// is how long an endpoint may take to start again without being ejected.
	Apart time.Duration
	// Base is how long the first ejection lasts; the n-th lasts n times as long, at most Most.
	Base, Most time.Duration
	// Forgive is the time without an ejection after which one of those before is forgotten.
	Forgive time.Duration
}

// DefaultEjectionRules are those that vipd goes by.
func DefaultEjectionRules() EjectionRules {
	return EjectionRules{Failures: 5, Apart: time.Second, Base: 30 * time.Second, Most: 5 * time.Minute, Forgive: 5 * time.Minute}
}

// Room tells how many more endpoints may be ejected beside a target, see balancer.EjectionRoom.
type Room func(balancer.Target) int

// Ejected is an ejection that began or ended.
type Ejected struct {
	Target balancer.Target
	balancer.Ejection
	// End says in words why it ended, and For how long it lasted; "" and 0: it began.
	End string
	For time.Duration
}

// Ejections decides from what came of connects which endpoints get no new ones for a while. It has no clock, and is used
// by one goroutine at a time. Only endpoints that fail are remembered, until all is forgiven; it is not kept over a
// restart, after which an endpoint that still fails is soon found out again.
type Ejections struct {
	rules   EjectionRules
	records map[balancer.Target]*record
	ejected snap.Map[balancer.Target, balancer.Ejection]
}

// record is what is remembered of a target.
type record struct {
	// failed counts the connects that failed in a row, up to Failures.
	failed int
	// last is when one was last counted.
	last time.Time
	// count is how many ejections are not forgotten; since is when one was last forgotten or over.
	count int
	since time.Time
	// began and until are those of the ejection that goes on, by the monotonic clock.
	began, until time.Time
	// passed counts the checks in a row that passed since then.
	passed int
}

// NewEjections returns one in which nothing is ejected.
func NewEjections(rules EjectionRules) *Ejections {
	return &Ejections{rules: rules, records: map[balancer.Target]*record{}}
}

// Now returns what is ejected.
func (e *Ejections) Now() snap.Map[balancer.Target, balancer.Ejection] { return e.ejected }

// Next returns when the next ejection ends by time; zero means nothing is ejected.
func (e *Ejections) Next() (next time.Time) {
	for t := range e.ejected.Keys() {
		if until := e.records[t].until; next.IsZero() || until.Before(next) {
			next = until
		}
	}
	return next
}

// Failed takes in that a connect to t failed, and returns the ejection if that begins one. Where there is no room, t is
// ejected at its first failure for which there is.
func (e *Ejections) Failed(t balancer.Target, cause string, now time.Time, room Room) (Ejected, bool) {
	if e.ejected.Has(t) {
		return Ejected{}, false
	}
	r := e.records[t]
	if r == nil {
		r = &record{}
		e.records[t] = r
	}
	if !r.last.IsZero() && now.Sub(r.last) < e.rules.Apart {
		return Ejected{}, false
	}
	r.failed, r.last = min(r.failed+1, e.rules.Failures), now
	if r.failed < e.rules.Failures || room(t) <= 0 {
		return Ejected{}, false
	}
	e.forgive(r, now)
	if time.Duration(r.count)*e.rules.Base < e.rules.Most { // more would only take longer to be forgotten
		r.count++
	}
	r.began, r.until, r.passed = now, now.Add(min(time.Duration(r.count)*e.rules.Base, e.rules.Most)), 0
	x := balancer.Ejection{Since: plain(r.began), Until: plain(r.until), Count: r.count, Cause: cause}
	e.ejected = e.ejected.Set(t, x)
	return Ejected{Target: t, Ejection: x}, true
}

// Answered takes in that t took a connection: its row of failures is over, and so is its ejection, if a connection was
// tried there because no other took it.
func (e *Ejections) Answered(t balancer.Target, now time.Time) (Ejected, bool) {
	r := e.records[t]
	if r == nil {
		return Ejected{}, false
	}
	out, ended := e.end(t, now, "it took a connection")
	r.failed, r.last = 0, time.Time{}
	e.tidy(t, r, now)
	return out, ended
}

// Checked takes in the result of a check of t's own address and port. The ejection ends with rise passed ones in a row
// that began after it.
func (e *Ejections) Checked(t balancer.Target, res Result, rise int, now time.Time) (Ejected, bool) {
	r := e.records[t]
	if !e.ejected.Has(t) || res.Began.Before(r.began) {
		return Ejected{}, false
	}
	switch res.Outcome {
	case Failed:
		r.passed = 0
	case Passed:
		r.passed++
	}
	if r.passed < rise {
		return Ejected{}, false
	}
	return e.end(t, now, "it passes its checks")
}

// Follow takes in the time, and what has changed around the targets: what is not an endpoint any more is forgotten, and
// where others failed or went since, the latest ejections end for which there is no room any more.
func (e *Ejections) Follow(now time.Time, is func(balancer.Target) bool, room Room) []Ejected {
	var ended []Ejected
	end := func(t balancer.Target, why string) {
		x, _ := e.end(t, now, why)
		ended = append(ended, x)
	}
	for t := range e.ejected.Keys() {
		switch {
		case !is(t):
			end(t, "it is no endpoint any more")
		case !now.Before(e.records[t].until):
			end(t, "its time is over")
		}
	}
	latest := func(a, b balancer.Target) int { return e.records[b].began.Compare(e.records[a].began) }
	for _, t := range slices.SortedStableFunc(e.ejected.Keys(), latest) {
		if room(t) < 0 {
			end(t, "too many others are out")
		}
	}
	for t, r := range e.records {
		if !is(t) {
			delete(e.records, t)
		} else {
			e.tidy(t, r, now)
		}
	}
	return ended
}

// end ends the ejection of t, if there is one.
func (e *Ejections) end(t balancer.Target, now time.Time, why string) (Ejected, bool) {
	x, ok := e.ejected.Get(t)
	if !ok {
		return Ejected{}, false
	}
	e.ejected = e.ejected.Delete(t)
	r := e.records[t]
	r.since, r.failed, r.last = now, e.rules.Failures-1, time.Time{}
	return Ejected{Target: t, Ejection: x, End: why, For: now.Sub(r.began)}, true
}

// plain is t without its monotonic reading.
func plain(t time.Time) time.Time { return t.UTC().Round(0) }

// forgive forgets as many ejections of r as have been paid for by time.
func (e *Ejections) forgive(r *record, now time.Time) {
	n := min(r.count, int(now.Sub(r.since)/e.rules.Forgive))
	if n > 0 {
		r.count -= n
		r.since = r.since.Add(time.Duration(n) * e.rules.Forgive)
	}
}

// tidy drops a record that says nothing any more. Who took no connection since its ejection stays on probation only until
// all is forgiven.
func (e *Ejections) tidy(t balancer.Target, r *record, now time.Time) {
	if e.ejected.Has(t) {
		return
	}
	had := r.count
	if e.forgive(r, now); had > 0 && r.count == 0 {
		r.failed = 0
	}
	if r.count == 0 && r.failed == 0 {
		delete(e.records, t)
	}
}
