package convert

import (
	"cmp"
	"time"
)

// timing holds the intervals and timeouts of the origin's checks. If a value is zero, vipd's
// default applies.
type timing struct {
	interval, timeout, fast span
}

// span is a duration with its source: the line, or a description if no line sets it.
type span struct {
	time time.Duration
	line int
	why  string
}

// These are the limits for vipd's check intervals, and the default interval.
const (
	minInterval   = 100 * time.Millisecond
	maxInterval   = 24 * time.Hour
	usualInterval = 2 * time.Second
)

// checkTimes sets the health table's intervals and timeout within vipd's limits: timeout <
// interval, and fast_interval <= interval.
func (d *draft) checkTimes(s *service, t timing) {
	bounded := min(max(t.interval.time, minInterval), maxInterval)
	switch {
	case t.interval.time == 0:
		bounded = usualInterval
	case bounded != t.interval.time:
		d.note(cmp.Or(t.interval.line, s.line), "interval is set to %s: vipd accepts values from %s to %s", seconds(bounded), seconds(minInterval), seconds(maxInterval))
		fallthrough
	default:
		s.checkSpan("interval", bounded, t.interval)
	}
	longest := below(bounded)
	switch {
	case t.timeout.time >= bounded:
		d.note(cmp.Or(t.timeout.line, s.line), "timeout is set to %s: it must be below interval, which is %s", seconds(longest), seconds(bounded))
		s.checkSpan("timeout", longest, t.timeout)
	case t.timeout.time > 0:
		s.checkSpan("timeout", max(t.timeout.time, time.Millisecond), t.timeout)
	case t.timeout.line > 0:
		d.note(t.timeout.line, "timeout keeps vipd's default, because vipd's checks always have a timeout")
	}
	if t.fast.time > 0 {
		fast := min(max(t.fast.time, minInterval), bounded)
		if fast != t.fast.time {
			d.note(cmp.Or(t.fast.line, s.line), "fast_interval is set to %s: vipd accepts values from %s to the value of interval", seconds(fast), seconds(minInterval))
		}
		s.checkSpan("fast_interval", fast, t.fast)
	}
}

// below returns the longest timeout that vipd accepts for an interval.
func below(interval time.Duration) time.Duration {
	return (interval - interval/10).Truncate(time.Millisecond)
}

func (s *service) checkSpan(name string, d time.Duration, from span) {
	s.health = put(s.health, setting{name: name, value: seconds(d), line: from.line, why: from.why})
}
