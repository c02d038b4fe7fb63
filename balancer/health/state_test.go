package health_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/test/wait"
)

// model is a reference model of State. It keeps all results, and computes each property of the
// state from all of them.
type model struct {
	rules   health.Rules
	results []health.Result // without results of checks that could not run
}

func (m *model) add(r health.Result) {
	if r.Outcome != health.NotRun {
		m.results = append(m.results, r)
	}
}

// row returns the number of consecutive results with the same outcome, up to and including result
// i.
func (m *model) row(i int) int {
	n := 1
	for i-n >= 0 && m.results[i-n].Outcome == m.results[i].Outcome {
		n++
	}
	return n
}

// verdict returns the verdict after the first n results. The latest row of equal results that is as
// long as Rise or Fall decides. For the first verdict, a single result is sufficient.
func (m *model) verdict(n int) balancer.Verdict {
	for i := n - 1; i >= 0; i-- {
		passed := m.results[i].Outcome == health.Passed
		switch {
		case passed && (i == 0 || m.row(i) >= m.rules.Rise):
			return balancer.HealthUp
		case !passed && (i == 0 || m.row(i) >= m.rules.Fall):
			return balancer.HealthDown
		}
	}
	return balancer.HealthUnknown
}

// since returns the time when the current verdict was reached.
func (m *model) since() time.Time {
	n := len(m.results)
	for n > 0 && m.verdict(n-1) == m.verdict(len(m.results)) {
		n--
	}
	if n == 0 {
		return time.Time{}
	}
	return m.results[n-1].Ended()
}

// cause returns the text of the result that led to the current verdict. If the verdict was assumed,
// the first result that confirms the verdict counts.
func (m *model) cause() string {
	n := len(m.results)
	for n > 0 && m.verdict(n-1) == m.verdict(len(m.results)) {
		n--
	}
	for _, r := range m.results[max(n-1, 0):] {
		if r.Text != "" && (r.Outcome == health.Passed) == (m.verdict(len(m.results)) == balancer.HealthUp) {
			return r.Text
		}
	}
	return ""
}

// streak returns the number of results since the last result that agrees with the verdict.
func (m *model) streak() int {
	n := len(m.results)
	if n == 0 || (m.results[n-1].Outcome == health.Passed) == (m.verdict(n) == balancer.HealthUp) {
		return 0
	}
	return m.row(n - 1)
}

func randomRules(r *rand.Rand) health.Rules {
	interval := time.Duration(1+r.IntN(50)) * 100 * time.Millisecond
	return health.Rules{Interval: interval, FastInterval: interval / time.Duration(1+r.IntN(5)), Rise: 1 + r.IntN(4), Fall: 1 + r.IntN(4)}
}

// assumed reports whether the first verdict still holds and no result has confirmed it.
func (m *model) assumed() bool {
	for i, r := range m.results[1:] {
		if r.Outcome == m.results[0].Outcome || m.verdict(i+2) != m.verdict(1) {
			return false
		}
	}
	return true
}

// TestStateMatchesModel applies random sequences of results. A third of the sequences start with a
// verdict that is assumed from other nodes. State must agree with the reference model after each
// result.
func TestStateMatchesModel(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := model{rules: randomRules(r)}
		now := time.Unix(1_700_000_000, 0)
		s := health.New(seed, now, m.rules.Interval)
		if wait := s.Due.Sub(now); wait < 0 || wait >= m.rules.Interval {
			t.Fatalf("seed %d: first check is due after %s, want less than the interval %s", seed, wait, m.rules.Interval)
		}
		told := seed%3 == 0
		if told {
			first := health.Result{Outcome: []health.Outcome{health.Passed, health.Failed}[r.IntN(2)], Began: now}
			m.add(first)
			s = s.Assume(m.verdict(1), now)
		}
		outcome := health.Passed
		for i := range 60 {
			if r.IntN(3) == 0 {
				outcome = []health.Outcome{health.Passed, health.Failed, health.NotRun}[r.IntN(3)]
			}
			late := time.Duration(r.IntN(20)) * time.Millisecond
			took := time.Duration(r.Int64N(int64(m.rules.Interval)))
			res := health.Result{Outcome: outcome, Began: s.Due.Add(late), Took: took, Text: fmt.Sprint("seen ", i)}
			m.add(res)
			turned := s.Turning()
			s = s.After(m.rules, res)
			checkState(t, seed, i, s, &m, res, turned)
			if s.Assumed != (told && m.assumed()) {
				t.Fatalf("seed %d, result %d: State.Assumed = %v, want the opposite", seed, i, s.Assumed)
			}
			if s.Cause != m.cause() {
				t.Fatalf("seed %d, result %d: cause = %q, want %q", seed, i, s.Cause, m.cause())
			}
		}
	}
}

func checkState(t *testing.T, seed uint64, i int, s health.State, m *model, res health.Result, turned bool) {
	t.Helper()
	if want := m.verdict(len(m.results)); s.Verdict != want || !s.Since.Equal(m.since()) || s.Streak != m.streak() || s.Last != res {
		t.Fatalf("seed %d, result %d: state = %+v, want %q since %s, streak %d", seed, i, s, want, m.since(), m.streak())
	}
	interval := m.rules.Interval
	least := interval * 9 / 10
	switch {
	case s.Turning():
		interval, least = m.rules.FastInterval, m.rules.FastInterval*9/10
	case turned: // targets that turn together get different times for the next check, so their checks spread again
		least = m.rules.FastInterval
	}
	wait := s.Due.Sub(res.Began)
	if wait > max(interval, res.Took) || wait < least || wait < res.Took {
		t.Fatalf("seed %d, result %d: next check after %s, want %s to %s, at least %s", seed, i, wait, least, interval, res.Took)
	}
}

// TestFailureDetectedInTime kills targets at random times. From then on, each check fails after at
// most the timeout. Each target must be down within Fall intervals and one timeout.
func TestFailureDetectedInTime(t *testing.T) {
	for seed := range uint64(wait.Soak(500, 3000)) {
		r := rand.New(rand.NewPCG(seed, 2))
		rules := randomRules(r)
		timeout := time.Duration(1 + r.Int64N(int64(rules.Interval)-1))
		start := time.Unix(1_700_000_000, 0)
		s := health.New(seed, start, rules.Interval)
		dies := start.Add(rules.Interval + time.Duration(r.Int64N(int64(10*rules.Interval))))
		for s.Verdict != balancer.HealthDown {
			res := health.Result{Outcome: health.Passed, Began: s.Due}
			if !s.Due.Before(dies) {
				res.Outcome, res.Took = health.Failed, time.Duration(r.Int64N(int64(timeout)+1))
			}
			s = s.After(rules, res)
		}
		if took, most := s.Since.Sub(dies), rules.Interval*time.Duration(rules.Fall)+timeout; took > most {
			t.Fatalf("seed %d: target went down after %s, want at most %s with the rules %+v and a timeout of %s", seed, took, most, rules, timeout)
		}
	}
}

// TestChecksAreSpread starts checking many targets at the same time. The checks must be spread
// evenly over the first interval and over later intervals.
func TestChecksAreSpread(t *testing.T) {
	rules := health.Rules{Interval: 2 * time.Second, FastInterval: time.Second, Rise: 2, Fall: 3}
	start := time.Unix(1_700_000_000, 0)
	states := make([]health.State, 10_000)
	for i := range states {
		states[i] = health.New(uint64(i), start, rules.Interval)
	}
	for second := range 20 {
		var per [10]int // number of checks in each tenth of the second
		from := start.Add(time.Duration(second) * time.Second)
		for i := range states {
			for s := &states[i]; s.Due.Before(from.Add(time.Second)); {
				per[s.Due.Sub(from)/(100*time.Millisecond)]++
				*s = s.After(rules, health.Result{Outcome: health.Passed, Began: s.Due, Took: time.Millisecond})
			}
		}
		for i, n := range per {
			if n < 350 || n > 1000 {
				t.Errorf("second %d: %d of 10,000 targets were checked in tenth %d of the second, want about 526", second, n, i)
			}
		}
	}
}

// TestRestoreContinuesRow saves a state after two failures in a row, while the verdict is still up,
// and restores it. The next failure must count as the third in the row. A state that is too old
// must not be restored.
func TestRestoreContinuesRow(t *testing.T) {
	rules := health.Rules{Interval: 2 * time.Second, FastInterval: time.Second, Rise: 2, Fall: 3}
	now := time.Unix(1_700_000_000, 0)
	result := func(o health.Outcome) health.Result {
		now = now.Add(time.Second)
		return health.Result{Outcome: o, Began: now, Took: time.Millisecond, Text: string(o)}
	}
	s := health.New(1, now, rules.Interval)
	if _, ok := s.Save(); ok {
		t.Error("state without a verdict: Save returns true, want false")
	}
	s = s.After(rules, result(health.Passed)).After(rules, result(health.Failed)).After(rules, result(health.Failed))
	kept, ok := s.Save()
	if !ok {
		t.Fatal("state with a verdict: Save returns false, want true")
	}
	for _, c := range []struct {
		age  time.Duration
		want balancer.Verdict // verdict after another failure
	}{
		{-time.Second, balancer.HealthDown}, // the saved state is ignored, so the first result decides
		{time.Second, balancer.HealthDown},  // this is the third failure in a row
		{2 * time.Minute, balancer.HealthDown},
	} {
		at := s.Last.Ended().Add(c.age)
		r := kept.Restore(rules, 1, time.Time{}, at, rules.Interval)
		fresh := c.age < 0 || c.age > time.Minute
		if (r.Verdict == balancer.HealthUnknown) != fresh || !fresh && (!r.Since.Equal(s.Since) || r.Cause != "passed" || r.Streak != 2 || r.Last.Text != "failed") {
			t.Errorf("restored after %s: state = %+v, want the saved state if it is at most a minute old, and otherwise no verdict", c.age, r)
		}
		if wait := r.Due.Sub(at); wait < 0 || wait >= rules.Interval {
			t.Errorf("restored after %s: next check is due in %s, want less than the interval", c.age, wait)
		}
		if got := r.After(rules, health.Result{Outcome: health.Failed, Began: r.Due}).Verdict; got != c.want {
			t.Errorf("restored after %s: verdict after another failure = %q, want %q", c.age, got, c.want)
		}
		if got := r.After(rules, health.Result{Outcome: health.Passed, Began: r.Due}).Verdict; got != balancer.HealthUp {
			t.Errorf("restored after %s: verdict after a passed check = %q, want up", c.age, got)
		}
	}
	for held, want := range map[time.Duration]balancer.Verdict{time.Second: balancer.HealthUp, 2 * time.Minute: balancer.HealthUnknown, -time.Second: balancer.HealthUnknown} {
		at := s.Last.Ended().Add(time.Hour)
		if got := kept.Restore(rules, 1, at.Add(-held), at, rules.Interval).Verdict; got != want {
			t.Errorf("last checked an hour ago, current until %s ago: verdict = %q, want %q", held, got, want)
		}
	}
	junk := kept
	junk.Verdict = "sideways"
	if r := junk.Restore(rules, 1, time.Time{}, s.Last.Ended(), 0); r.Verdict != balancer.HealthUnknown {
		t.Errorf("invalid saved verdict: restored state = %+v, want an unknown verdict", r)
	}
}

// TestChangedCheckKeepsVerdict changes the settings of a check. The changed check must start with
// the previous check's verdict.
func TestChangedCheckKeepsVerdict(t *testing.T) {
	rules := health.Rules{Interval: 8 * time.Second, FastInterval: time.Second, Rise: 2, Fall: 2}
	now := time.Unix(1_700_000_000, 0)
	s := health.New(1, now, rules.Interval)
	s = s.After(rules, health.Result{Outcome: health.Failed, Began: now, Text: "connection refused"})
	next := s.Inherit(9, now.Add(2*time.Second), time.Second)
	if next.Verdict != balancer.HealthDown || !next.Since.Equal(s.Since) || next.Cause != "connection refused" || next.Last != s.Last || next.Due.After(now.Add(3*time.Second)) {
		t.Errorf("inherited state = %+v, want the verdict and times of %+v, and a check due within 1s", next, s)
	}
	one := next.After(rules, health.Result{Outcome: health.Passed, Began: next.Due})
	two := one.After(rules, health.Result{Outcome: health.Passed, Began: one.Due})
	if one.Verdict != balancer.HealthDown || two.Verdict != balancer.HealthUp {
		t.Errorf("verdicts after one and two passed checks = %q and %q, want %q and %q", one.Verdict, two.Verdict, balancer.HealthDown, balancer.HealthUp)
	}
}

// TestExpedite expedites a check. The check must be due earlier than before, but not until the fast
// interval has passed since the last check.
func TestExpedite(t *testing.T) {
	rules := health.Rules{Interval: 8 * time.Second, FastInterval: time.Second, Rise: 2, Fall: 2}
	now := time.Unix(1_700_000_000, 0)
	s := health.New(1, now, rules.Interval)
	if got := s.Expedite(rules, now).Due; !got.Equal(now) {
		t.Errorf("without an earlier check: the expedited check is due in %s, want now", got.Sub(now))
	}
	s = s.After(rules, health.Result{Outcome: health.Passed, Began: now})
	for _, c := range []struct{ at, want time.Duration }{
		{300 * time.Millisecond, time.Second}, {2 * time.Second, 2 * time.Second}, {9 * time.Second, s.Due.Sub(now)},
	} {
		if got := s.Expedite(rules, now.Add(c.at)).Due.Sub(now); got != c.want {
			t.Errorf("expedited %s after a check: the next check is due %s after it, want %s", c.at, got, c.want)
		}
	}
}

// TestExpeditedChecksAreSpread expedites the checks of many targets at the same time. The checks
// after the expedited checks must be spread again.
func TestExpeditedChecksAreSpread(t *testing.T) {
	r := health.Rules{Interval: time.Second, FastInterval: 200 * time.Millisecond, Rise: 1, Fall: 1}
	start := time.Unix(1_700_000_000, 0)
	slots := map[time.Duration]int{}
	for seed := range uint64(1000) {
		s := health.New(seed, start, 0).After(r, health.Result{Outcome: health.Passed, Began: start})
		at := start.Add(500 * time.Millisecond)
		s = s.Expedite(r, at).After(r, health.Result{Outcome: []health.Outcome{health.Passed, health.Failed}[seed%2], Began: at})
		slots[s.Due.Sub(at)/(100*time.Millisecond)]++
		if gap := s.After(r, health.Result{Outcome: s.Last.Outcome, Began: s.Due}).Due.Sub(s.Due); gap < 900*time.Millisecond {
			t.Fatalf("seed %d: interval between the next two checks = %v, want at least 900ms", seed, gap)
		}
	}
	for slot := range time.Duration(10) {
		if n := slots[slot]; slot < 2 && n > 0 || slot >= 2 && n < 90 {
			t.Errorf("checks = %d for 1000 targets in the 100 ms after %d00 ms, want 0 before 200 ms and at least 90 later", n, slot)
		}
	}
}
