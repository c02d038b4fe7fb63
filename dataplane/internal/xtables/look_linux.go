package xtables

import (
	"cmp"
	"time"
)

// Look decides at each probe (once a second) whether to compare a table with its expected content.
// A comparison is necessary if the table has changed since it was last correct. Its cost grows with
// the table, and other programs may change rules constantly. So after an initial credit, the pause
// between comparisons is their duration times the constant share. If the stamp reveals a change,
// the pause is at most maxSeenPause, because probes run once a second and a change must be found
// within two seconds, even on a busy machine. The zero Look has no stamp, and is for comparing
// sizes.
type Look struct {
	// always reports whether comparisons are made even if a legacy table's stamp reveals no change,
	// because it can miss a change.
	always bool
	// maxPause is the maximum pause if the stamp reveals no change. Zero means maxSizesPause.
	maxPause time.Duration

	// stamp is the table's stamp when it was last compared or written. sure reports whether the
	// table was correct at that time.
	stamp Stamp
	sure  bool
	// recheckAt is when to compare unconditionally, because other programs may have changed the
	// table during vipd's write. It is zero if no such comparison is needed.
	recheckAt time.Time
	// owed is how much time comparisons had used beyond their share when the last comparison ended,
	// at the time ended.
	owed  time.Duration
	ended time.Time
}

const (
	// Comparisons use at most 1/share of the time.
	share = 200
	// credit is how much time comparisons may use before they require a pause.
	credit = 20 * time.Millisecond
	// maxSeenPause is the maximum pause before a comparison if the stamp reveals a change.
	maxSeenPause = time.Second
	// maxSizesPause and maxContentPause are the maximum pauses for comparing sizes and contents if
	// the stamp reveals no change.
	maxSizesPause   = 10 * time.Second
	maxContentPause = 2 * time.Minute
)

// stamper returns stamps and the number of its own transactions. [Tool] implements it.
type stamper interface {
	Stamp(table string) (Stamp, error)
	Commits() uint32
}

var _ stamper = (*Tool)(nil)

// Probe calls compare if a comparison is due, and returns its result. If the table has fewer
// entries than ours returns, the comparison is due immediately, because an object must be missing.
func (l *Look) Probe(s stamper, table string, ours func() int, compare func() (reason string, err error)) (reason string, err error) {
	stamp, err := s.Stamp(table)
	if err != nil {
		return "", err
	}
	return l.probe(stamp, ours, compare)
}

func (l *Look) probe(stamp Stamp, ours func() int, compare func() (reason string, err error)) (reason string, err error) {
	began := time.Now()
	if l.unchanged(stamp, began) || l.tooEarly(stamp, began) && (stamp.Entries == 0 || stamp.Entries >= ours()) {
		return "", nil
	}
	reason, err = compare()
	// The next stamp will reveal a change during the comparison.
	l.stamp = stamp
	l.sure = reason == "" && err == nil
	l.recheckAt = time.Time{}
	l.charge(began, time.Now())
	return reason, err
}

func (l *Look) unchanged(stamp Stamp, now time.Time) bool {
	return l.sure && stamp == l.stamp && (l.recheckAt.IsZero() || now.Before(l.recheckAt)) && (stamp.Generation != 0 || !l.always)
}

// remainingCost returns how much time comparisons have used beyond their share.
func (l *Look) remainingCost(now time.Time) time.Duration {
	return max(0, l.owed-now.Sub(l.ended)/share)
}

// tooEarly reports whether it is too early for the next comparison.
func (l *Look) tooEarly(stamp Stamp, now time.Time) bool {
	seen := !l.sure || stamp != l.stamp || !l.recheckAt.IsZero()
	return l.remainingCost(now) > credit && !(seen && now.Sub(l.ended) >= maxSeenPause)
}

func (l *Look) charge(began, ended time.Time) {
	l.owed, l.ended = min(l.remainingCost(began)+ended.Sub(began), credit+cmp.Or(l.maxPause, maxSizesPause)/share), ended
}

// Found records that the table was read and is correct. stamp is the stamp from before the read, or
// the zero Stamp if unknown.
func (l *Look) Found(stamp Stamp) {
	l.stamp = stamp
	l.sure = stamp != Stamp{}
	l.recheckAt = time.Time{}
}

// Writing starts a change to the table: call it before the change, and the returned function
// afterwards. If other
// programs may have changed the table at the same time, the table will be compared. In the nft
// variant, this happens at the next probe, if transactions other than ours took effect. In the
// legacy variant, which does not count transactions, it happens after maxSeenPause.
func (l *Look) Writing(s stamper, table string) (wrote func()) {
	before, err := s.Stamp(table)
	untouched := l.sure && err == nil && before == l.stamp
	began := s.Commits()
	return func() {
		after, err := s.Stamp(table)
		l.stamp = after
		l.sure = untouched && err == nil
		l.recheckAt = time.Time{}
		if after.Generation == 0 {
			l.recheckAt = time.Now().Add(maxSeenPause)
		} else if after.Generation-before.Generation != s.Commits()-began {
			l.sure = false
		}
	}
}

// Contents returns a Look for comparing the content of chains.
func Contents() Look { return Look{always: true, maxPause: maxContentPause} }

// Watch consists of a Look that compares the sizes of chains, and a Look that compares their
// content. Comparing content is more expensive and has its own pauses. The zero Watch has no
// stamps.
type Watch struct{ sizes, content Look }

// Probe calls [Look.Probe] for both comparisons. It compares the content only if the sizes are
// correct.
func (w *Watch) Probe(s stamper, table string, ours func() int, sizes, content func() (reason string, err error)) (reason string, err error) {
	stamp, err := s.Stamp(table)
	if err != nil {
		return "", err
	}
	if reason, err = w.sizes.probe(stamp, ours, sizes); reason != "" || err != nil {
		return reason, err
	}
	w.content.always, w.content.maxPause = true, maxContentPause
	return w.content.probe(stamp, func() int { return 0 }, content)
}

// Found calls [Look.Found] for both comparisons.
func (w *Watch) Found(stamp Stamp) {
	w.sizes.Found(stamp)
	w.content.Found(stamp)
}

// Writing calls [Look.Writing] for both comparisons.
func (w *Watch) Writing(s stamper, table string) (wrote func()) {
	sizes, content := w.sizes.Writing(s, table), w.content.Writing(s, table)
	return func() {
		sizes()
		content()
	}
}
