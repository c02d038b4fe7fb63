package xtables

import (
	"cmp"
	"time"
)

// Look decides at each probe whether to compare a table with its expected state: if it has changed
// since it was last found correct. The cost of a comparison grows with the table, and other
// programs may change rules all the time. So after a credit, comparisons are share times their
// duration apart. If the stamp shows a change, the pause is at most maxSeenPause: probes run once a
// second, and a change must be found within two seconds, even on a busy machine. The zero Look
// knows nothing, and checks sizes.
type Look struct {
	// always requests comparisons even if legacy's stamp shows no change, because the stamp can
	// miss a change.
	always bool
	// maxPause is the maximum pause if the stamp shows no change; 0 means maxSizesPause.
	maxPause time.Duration

	// stamp is the table's stamp when it was last compared or written. sure reports whether the
	// table was correct then.
	stamp Stamp
	sure  bool
	// recheckAt is the time of a comparison in any case, because others may have changed the table
	// during our write. It is zero if they have not.
	recheckAt time.Time
	// owed is the unpaid time of comparisons at the end of the last comparison, and ended the time
	// of that end.
	owed  time.Duration
	ended time.Time
}

const (
	// share limits comparisons to one part in share of the time.
	share = 200
	// credit is the time for comparisons without a pause.
	credit = 20 * time.Millisecond
	// maxSeenPause is the maximum pause before a comparison if the stamp shows a change.
	maxSeenPause = time.Second
	// maxSizesPause and maxContentPause are the maximum pauses if the stamp shows no change, for
	// sizes and for contents.
	maxSizesPause   = 10 * time.Second
	maxContentPause = 2 * time.Minute
)

// stamper returns stamps, and the number of its transactions. [Tool] implements it.
type stamper interface {
	Stamp(table string) (Stamp, error)
	Commits() uint32
}

var _ stamper = (*Tool)(nil)

// Probe calls compare if the table is due, and returns its result. If the table has fewer entries
// than ours, it does not wait, because that proves that something is missing.
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
	// The next stamp shows a change during the comparison.
	l.stamp, l.sure, l.recheckAt = stamp, reason == "" && err == nil, time.Time{}
	l.charge(began, time.Now())
	return reason, err
}

func (l *Look) unchanged(stamp Stamp, now time.Time) bool {
	return l.sure && stamp == l.stamp && (l.recheckAt.IsZero() || now.Before(l.recheckAt)) && (stamp.Generation != 0 || !l.always)
}

// remainingCost returns the unpaid time of comparisons.
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

// Found records that the table was read, and is correct from now on. stamp is from before the
// reading; the zero Stamp means unknown.
func (l *Look) Found(stamp Stamp) {
	l.stamp, l.sure, l.recheckAt = stamp, stamp != Stamp{}, time.Time{}
}

// Writing is called before we change the table, and its result afterwards. If other programs may
// have changed the table at the same time, it is compared: in nft at the next probe, because our
// transactions are counted, and in legacy, which does not count them, after maxSeenPause.
func (l *Look) Writing(s stamper, table string) (wrote func()) {
	before, err := s.Stamp(table)
	untouched := l.sure && err == nil && before == l.stamp
	began := s.Commits()
	return func() {
		after, err := s.Stamp(table)
		l.stamp, l.sure, l.recheckAt = after, untouched && err == nil, time.Time{}
		if after.Generation == 0 {
			l.recheckAt = time.Now().Add(maxSeenPause)
		} else if after.Generation-before.Generation != s.Commits()-began {
			l.sure = false
		}
	}
}

// Contents returns a Look at the content of chains.
func Contents() Look { return Look{always: true, maxPause: maxContentPause} }

// Watch consists of a Look at the sizes of chains, and a Look at their content, which is more
// expensive and has its own pace. The zero Watch knows nothing.
type Watch struct{ sizes, content Look }

// Probe is [Look.Probe] with both comparisons. The content is compared if the sizes are correct.
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

// Found is [Look.Found].
func (w *Watch) Found(stamp Stamp) {
	w.sizes.Found(stamp)
	w.content.Found(stamp)
}

// Writing is [Look.Writing].
func (w *Watch) Writing(s stamper, table string) (wrote func()) {
	sizes, content := w.sizes.Writing(s, table), w.content.Writing(s, table)
	return func() {
		sizes()
		content()
	}
}
