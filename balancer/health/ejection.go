package health

import (
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// EjectionRules define how many failed connection attempts eject an endpoint, and for how long.
type EjectionRules struct {
	// Failures is the number of attempts in a row that must fail before an endpoint is ejected.
	// After its ejection an endpoint is on probation: a single failure ejects the endpoint again
	// until it has accepted a connection.
	Failures int
	// Apart is the minimum time between two failures that count, because failures at the same
	// moment have the same cause. An endpoint that restarts within about Failures times Apart is
	// not ejected.
	Apart time.Duration
	// Base is the duration of the first ejection. The n-th ejection lasts n times as long, up to
	// Max.
	Base, Max time.Duration
	// Forgive is how long an endpoint must go without an ejection before an earlier ejection no
	// longer counts.
	Forgive time.Duration
}

// DefaultEjectionRules returns the rules of vipd.
func DefaultEjectionRules() EjectionRules {
	return EjectionRules{Failures: 5, Apart: time.Second, Base: 30 * time.Second, Max: 5 * time.Minute, Forgive: 5 * time.Minute}
}

// Budget returns how many more endpoints may be ejected among those that share a target's
// connections (see balancer.EjectionBudget).
type Budget func(balancer.Target) int

// EjectionChange is the start or the end of an ejection.
type EjectionChange struct {
	Target balancer.Target
	balancer.Ejection
	// End is the reason for the end of the ejection, and For is its duration. They are "" and 0 for
	// a start.
	End string
	For time.Duration
}

// Ejections decides from the results of connection attempts which endpoints temporarily get no new
// connections. It has no clock. Only one goroutine at a time may use it. It keeps records only of
// failing endpoints, and drops a record when all ejections of the endpoint are forgiven. A restart
// loses the records, and endpoints that still fail are soon ejected again.
type Ejections struct {
	rules   EjectionRules
	records map[balancer.Target]*record
	ejected snap.Map[balancer.Target, balancer.Ejection]
}

// record holds what Ejections knows about a failing target.
type record struct {
	// failed is the number of failed attempts in a row, up to Failures.
	failed int
	// last is when the last failure that counted happened.
	last time.Time
	// count is the number of ejections that are not forgiven. since is when an ejection last ended
	// or was forgiven.
	count int
	since time.Time
	// began and until are the start and end of the current ejection, by the monotonic clock.
	began, until time.Time
	// passed is the number of consecutive passed checks since began.
	passed int
}

// NewEjections returns an Ejections without ejected endpoints.
func NewEjections(rules EjectionRules) *Ejections {
	return &Ejections{rules: rules, records: map[balancer.Target]*record{}}
}

// Ejected returns the ejected targets.
func (e *Ejections) Ejected() snap.Map[balancer.Target, balancer.Ejection] { return e.ejected }

// Next returns when the next ejection expires. Zero means that nothing is ejected.
func (e *Ejections) Next() (next time.Time) {
	for t := range e.ejected.Keys() {
		if until := e.records[t].until; next.IsZero() || until.Before(next) {
			next = until
		}
	}
	return next
}

// Failed records a failed connection attempt to t and returns the ejection that it starts, if any.
// If the budget is exhausted, t is ejected at its first failure after the budget permits this.
func (e *Ejections) Failed(t balancer.Target, cause string, now time.Time, room Budget) (EjectionChange, bool) {
	if e.ejected.Has(t) {
		return EjectionChange{}, false
	}
	r := e.records[t]
	if r == nil {
		r = &record{}
		e.records[t] = r
	}
	if !r.last.IsZero() && now.Sub(r.last) < e.rules.Apart {
		return EjectionChange{}, false
	}
	r.failed, r.last = min(r.failed+1, e.rules.Failures), now
	if r.failed < e.rules.Failures || room(t) <= 0 {
		return EjectionChange{}, false
	}
	e.forgive(r, now)
	if time.Duration(r.count)*e.rules.Base < e.rules.Max { // a higher count would only take longer to forgive
		r.count++
	}
	r.began = now
	r.until = now.Add(min(time.Duration(r.count)*e.rules.Base, e.rules.Max))
	r.passed = 0
	x := balancer.Ejection{Since: wallTime(r.began), Until: wallTime(r.until), Count: r.count, Cause: cause}
	e.ejected = e.ejected.Set(t, x)
	return EjectionChange{Target: t, Ejection: x}, true
}

// Answered records that t accepted a connection. The answer resets the number of failures, and ends
// an ejection of t. An ejected endpoint is still tried if no other endpoint accepts a connection.
func (e *Ejections) Answered(t balancer.Target, now time.Time) (EjectionChange, bool) {
	r := e.records[t]
	if r == nil {
		return EjectionChange{}, false
	}
	out, ended := e.end(t, now, "it accepted a connection")
	r.failed, r.last = 0, time.Time{}
	e.discard(t, r, now)
	return out, ended
}

// Checked records the result of a health check at t's own address and port. After rise consecutive
// passed checks that started after the ejection, the ejection ends.
func (e *Ejections) Checked(t balancer.Target, res Result, rise int, now time.Time) (EjectionChange, bool) {
	r := e.records[t]
	if !e.ejected.Has(t) || res.Began.Before(r.began) {
		return EjectionChange{}, false
	}
	switch res.Outcome {
	case Failed:
		r.passed = 0
	case Passed:
		r.passed++
	}
	if r.passed < rise {
		return EjectionChange{}, false
	}
	return e.end(t, now, "it passes its checks")
}

// Update ends expired ejections, and drops targets that are no longer endpoints. It also ends the
// latest ejections if they exceed the budget because other endpoints failed or were removed.
func (e *Ejections) Update(now time.Time, exists func(balancer.Target) bool, room Budget) []EjectionChange {
	var ended []EjectionChange
	end := func(t balancer.Target, why string) {
		x, _ := e.end(t, now, why)
		ended = append(ended, x)
	}
	for t := range e.ejected.Keys() {
		switch {
		case !exists(t):
			end(t, "it is no longer an endpoint")
		case !now.Before(e.records[t].until):
			end(t, "the ejection time has passed")
		}
	}
	latest := func(a, b balancer.Target) int { return e.records[b].began.Compare(e.records[a].began) }
	for _, t := range slices.SortedStableFunc(e.ejected.Keys(), latest) {
		if room(t) < 0 {
			end(t, "too many other endpoints are ejected or down")
		}
	}
	for t, r := range e.records {
		if !exists(t) {
			delete(e.records, t)
		} else {
			e.discard(t, r, now)
		}
	}
	return ended
}

// end ends the ejection of t. The bool is false if t is not ejected.
func (e *Ejections) end(t balancer.Target, now time.Time, why string) (EjectionChange, bool) {
	x, ok := e.ejected.Get(t)
	if !ok {
		return EjectionChange{}, false
	}
	e.ejected = e.ejected.Delete(t)
	r := e.records[t]
	r.since = now
	r.failed = e.rules.Failures - 1
	r.last = time.Time{}
	return EjectionChange{Target: t, Ejection: x, End: why, For: now.Sub(r.began)}, true
}

// wallTime returns t without its monotonic clock reading.
func wallTime(t time.Time) time.Time { return t.UTC().Round(0) }

// forgive reduces the count of r by one for each period of Forgive that has passed without an
// ejection.
func (e *Ejections) forgive(r *record, now time.Time) {
	n := min(r.count, int(now.Sub(r.since)/e.rules.Forgive))
	if n > 0 {
		r.count -= n
		r.since = r.since.Add(time.Duration(n) * e.rules.Forgive)
	}
}

// discard deletes t's record if it is no longer needed. A target that has accepted no connection
// since its ejection stays on probation until all ejections are forgiven.
func (e *Ejections) discard(t balancer.Target, r *record, now time.Time) {
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
