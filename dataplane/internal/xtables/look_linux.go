package xtables

import (
	"cmp"
	"time"
)

// Look decides at each probe whether to compare a table with what it should be: if it was changed since it was last
// found, or left, in order. Comparing grows with the table, and others may change rules all the time. So after a credit
// comparisons are share times as far apart as they took, but no more than seenPause where the stamp shows a change: probes
// come each second, and a change must be found within two, also on a machine that is so busy that a comparison takes
// long. The zero Look knows nothing, and is one at sizes.
type Look struct {
	// always compares also where legacy's stamp shows no change, because it can miss one.
	always bool
	// maxPause is the longest pause where the stamp shows no change; 0 means longestPause.
	maxPause time.Duration

	// stamp is the table's when it was last compared or left; sure: it was in order.
	stamp Stamp
	sure  bool
	// recheckAt is when to compare in any case, because others may have changed it while we did; zero if they have not.
	recheckAt time.Time
	// owed is the time that comparisons took and that was not waited for yet, at the time of the last one, ended.
	owed  time.Duration
	ended time.Time
}

const (
	// share is the part of the time that comparisons take in the long run: half a hundredth.
	share = 200
	// credit is how long they may take at once without a pause.
	credit = 20 * time.Millisecond
	// maxSeenPause is the longest pause before a change that the stamp shows is looked at.
	maxSeenPause = time.Second
	// maxSizesPause is the longest pause where the stamp shows none; contentPause is that of contents.
	maxSizesPause   = 10 * time.Second
	maxContentPause = 2 * time.Minute
)

// stamper is what tells stamps, and how many transactions it has made; *Tool does it.
type stamper interface {
	Stamp(table string) (Stamp, error)
	Commits() uint32
}

var _ stamper = (*Tool)(nil)

// Probe calls compare if the table is due, and returns what that says is wrong. Where the table has fewer entries than
// are ours it does not wait, for that alone proves that something is gone.
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
	// A change during the comparison is seen by the next stamp.
	l.stamp, l.sure, l.recheckAt = stamp, reason == "" && err == nil, time.Time{}
	l.charge(began, time.Now())
	return reason, err
}

func (l *Look) unchanged(stamp Stamp, now time.Time) bool {
	return l.sure && stamp == l.stamp && (l.recheckAt.IsZero() || now.Before(l.recheckAt)) && (stamp.Generation != 0 || !l.always)
}

// remainingCost is what is left to be waited for, divided by share.
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

// Found takes in that the table was read, and is from now on what it should be; stamp is that from before the reading,
// the zero Stamp if that is not known.
func (l *Look) Found(stamp Stamp) {
	l.stamp, l.sure, l.recheckAt = stamp, stamp != Stamp{}, time.Time{}
}

// Writing is called before we change the table, and what it returns afterwards. Where that leaves open whether others
// have changed it too, it is compared: in nft at the next probe, because our transactions are counted, and in legacy,
// which does not tell, after seenPause.
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

// Contents is a Look at what is in chains.
func Contents() Look { return Look{always: true, maxPause: maxContentPause} }

// Watch is a Look at the sizes of chains, and one at what is in them, which costs more and is paced by itself. The zero
// Watch knows nothing.
type Watch struct{ sizes, content Look }

// Probe is Look.Probe with both comparisons: the content is compared where sizes differ in nothing.
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

// Found is Look.Found.
func (w *Watch) Found(stamp Stamp) {
	w.sizes.Found(stamp)
	w.content.Found(stamp)
}

// Writing is Look.Writing.
func (w *Watch) Writing(s stamper, table string) (wrote func()) {
	sizes, content := w.sizes.Writing(s, table), w.content.Writing(s, table)
	return func() {
		sizes()
		content()
	}
}
