package xtables

import "time"

// Look decides at each probe whether a table is to be compared with what it should be: if anybody has changed it since
// it was last found, or left, in order. Comparing grows with the table, and others may change rules all the time, so
// that it may take a part of the time only: nobody need wait before the first comparisons, and after them for share times
// as long as they took. The zero Look knows nothing.
type Look struct {
	// Wary compares also where legacy's stamp says that nothing has changed, for it can miss a change.
	Wary bool

	// stamp is the table's when it was last compared or left; sure: it was in order.
	stamp Stamp
	sure  bool
	// again is when it is to be compared in any case: others may have changed it while we did. Zero: it need not be.
	again time.Time
	// owed is the time that comparisons took and that was not waited for yet, at the time of the last one, ended.
	owed  time.Duration
	ended time.Time
}

const (
	// share is which part of the time comparing may take: half a hundredth.
	share = 200
	// credit is how much it may take at once without waiting.
	credit = 20 * time.Millisecond
	// longestPause is the most between two comparisons, however long they take.
	longestPause = 10 * time.Second
)

// stamper is what tells stamps; *Tool does it.
type stamper interface {
	Stamp(table string) (Stamp, error)
}

var _ stamper = (*Tool)(nil)

// Probe calls compare if the table is due, and returns what that says is wrong. Where the table has fewer entries than
// are ours it does not wait, for that alone proves that something is gone.
func (l *Look) Probe(s stamper, table string, ours func() int, compare func() (reason string, err error)) (reason string, err error) {
	stamp, err := s.Stamp(table)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if l.unchanged(stamp, began) || l.rests(began) && (stamp.Entries == 0 || stamp.Entries >= ours()) {
		return "", nil
	}
	reason, err = compare()
	// A change during the comparison is seen by the next stamp.
	l.stamp, l.sure, l.again = stamp, reason == "" && err == nil, time.Time{}
	l.pay(began, time.Now())
	return reason, err
}

func (l *Look) unchanged(stamp Stamp, now time.Time) bool {
	return l.sure && stamp == l.stamp && (l.again.IsZero() || now.Before(l.again)) && (stamp.Generation != 0 || !l.Wary)
}

// owes is what is left to be waited for, divided by share.
func (l *Look) owes(now time.Time) time.Duration {
	return max(0, l.owed-now.Sub(l.ended)/share)
}

func (l *Look) rests(now time.Time) bool { return l.owes(now) > credit }

func (l *Look) pay(began, ended time.Time) {
	l.owed, l.ended = min(l.owes(began)+ended.Sub(began), credit+longestPause/share), ended
}

// Found takes in that the table was read, and is from now on what it should be; stamp is that from before the reading,
// the zero Stamp if that is not known.
func (l *Look) Found(stamp Stamp) {
	l.stamp, l.sure, l.again = stamp, stamp != Stamp{}, time.Time{}
}

// Untouched reports whether nobody has changed the table since it was found or left in order.
func (l *Look) Untouched(s stamper, table string) bool {
	stamp, err := s.Stamp(table)
	return l.sure && err == nil && stamp == l.stamp
}

// Left takes in that we have changed the table; untouched: before that nobody else had.
func (l *Look) Left(s stamper, table string, untouched bool) {
	stamp, err := s.Stamp(table)
	l.stamp, l.sure, l.again = stamp, untouched && err == nil, time.Now().Add(longestPause)
}
