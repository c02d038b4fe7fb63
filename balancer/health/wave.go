package health

import "time"

// Wave is a row of targets that begin to turn one soon after the other, as those of a host that has died, or of a rack: no
// two of them further apart than a fast interval. Those of a crowd are checked in step, at the same instants, so that
// their verdicts change together.
type Wave struct {
	// Origin is where the instants are counted from.
	Origin time.Time
	// Last is when the latest target joined, and Members how many have.
	Last    time.Time
	Members int
}

// crowd is the fewest targets that go in step. What fewer do is no burden, so each keeps its own pace.
const crowd = 5

// NewWave returns the wave of a target that begins to turn now. It takes a moment until others that have failed together
// with it are found: the first instant is late enough for them.
func NewWave(r Rules, now time.Time) Wave {
	return Wave{Origin: now.Add(r.FastInterval / 5), Last: now, Members: 1}
}

// Takes reports whether a target that begins to turn now belongs to the wave.
func (w Wave) Takes(r Rules, now time.Time) bool { return now.Sub(w.Last) <= r.FastInterval }

// Joined returns the wave with one more member.
func (w Wave) Joined(now time.Time) Wave {
	if now.After(w.Last) {
		w.Last = now
	}
	w.Members++
	return w
}

// Crowd reports whether the wave's members go in step.
func (w Wave) Crowd() bool { return w.Members >= crowd }

// slack is how much earlier than the fast interval says a check may come: by jitter, and to be in step.
func (r Rules) slack() time.Duration { return r.FastInterval / 10 }

// InStep returns s, which has just had a result, with its next check at an instant of the wave, if it is turning: at the
// first one that is not before the fast interval is over. The instants are a fast interval apart, or as many as a check
// takes, so that those whose checks hang go together too. Never is the time between two checks longer than the interval:
// where there is no such instant, s is returned as it is.
func (s State) InStep(r Rules, w Wave) State {
	if !s.Turning() {
		return s
	}
	end := s.Last.Ended()
	earliest, latest := s.Last.Began.Add(r.FastInterval), s.Last.Began.Add(r.Interval)
	if end.After(earliest) {
		earliest = end
	}
	steps := max(1, 1+(s.Last.Took-r.slack()-1)/r.FastInterval)
	for _, apart := range []time.Duration{steps * r.FastInterval, r.FastInterval} {
		due := w.Origin
		if over := earliest.Add(-r.slack()).Sub(due); over > 0 {
			due = due.Add((over + apart - 1) / apart * apart)
		}
		if due.Before(end) {
			due = end // it has taken a little longer than the others' checks: it is with them all the same
		}
		if !due.After(latest) {
			s.Due, s.offbeat = due, true
			return s
		}
	}
	return s
}
