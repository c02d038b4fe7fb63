package failover

import "slices"

// MaxJurors is the maximum size of a jury: the holder and four others.
const MaxJurors = 5

// Confirming is how many members of a jury of n must confirm a session, its holder among them.
func Confirming(n int) int { return n/2 + 1 }

// Revoking is how many members other than its holder must have voted a session dead: so many that too few are left to confirm
// it. A holder that is alone is confirmed by etcd only, and needs no vote.
func Revoking(n int) int {
	if n <= 1 {
		return 0
	}
	return n - Confirming(n) + 1
}

// Deadline returns until when a session is confirmed by its jury of n members: sent are the sending times of the newest
// heartbeats that the others have confirmed (0: none), asked that of the newest renewal in etcd.
func (t Timing) Deadline(n int, sent []Time, asked Time) Time {
	newest := asked
	if need := Confirming(n) - 1; need > 0 && need <= len(sent) {
		sorted := slices.Sorted(slices.Values(sent))
		newest = max(newest, sorted[len(sorted)-need])
	}
	if newest <= 0 {
		return 0
	}
	return newest.Add(t.Confirm)
}

// Juror is what a juror remembers of the session of one other node.
type Juror struct {
	// Session is the one that it knows.
	Session ID
	// Answered is when it last confirmed a heartbeat of it, and Newest is the sending time of that heartbeat; 0 means never.
	Answered, Newest Time
	// Dead: it has voted the session dead, and never confirms it again.
	Dead bool
}

// Meet makes the juror one of the session, if that is not the one that it knows.
func (j *Juror) Meet(session ID) {
	if j.Session != session {
		*j = Juror{Session: session}
	}
}

// Confirm reports whether the juror confirms a heartbeat of the session, and remembers that it did. A copy of the newest heartbeat is
// confirmed again, because the first answer may be lost, but it is not a sign of life.
func (j *Juror) Confirm(now Time, session ID, sent Time) bool {
	if j.Session != session || j.Dead || sent < j.Newest {
		return false
	}
	if sent > j.Newest {
		j.Newest, j.Answered = sent, max(j.Answered, now)
	}
	return true
}

// Silent says whether the juror has confirmed nothing of its session for the time of silence, nor begun itself within it: a
// juror that has just started may have forgotten what it confirmed before.
func (j *Juror) Silent(now, started Time, silence Timing) bool {
	return j.Dead || now.Since(max(j.Answered, started)) >= silence.Silence
}

// Vote says whether the juror finds its session dead; from then on it does not confirm it.
func (j *Juror) Vote(now, started Time, silence Timing) bool {
	j.Dead = j.Silent(now, started, silence)
	return j.Dead
}

// MayRevoke says whether a session may be buried with the votes of so many other members of a jury of n, by who has known the
// session's present revision since known: a renewal in etcd would have changed that.
func MayRevoke(now, known Time, n, votes int, silence Timing) bool {
	return votes >= Revoking(n) && now.Since(known) >= silence.Silence
}
