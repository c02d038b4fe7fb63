package failover

import (
	"slices"

	"vipd/balancer/failover/local"
)

// MaxJurors is the maximum size of a jury, which consists of the session's holder and up to four
// other nodes.
const MaxJurors = 5

// Confirming returns how many members of a jury of n must confirm a session, including the
// session's holder.
func Confirming(n int) int { return n/2 + 1 }

// Revoking returns how many members of a jury of n, other than the holder, must vote to revoke a
// session. After these votes, too few members remain to confirm the session. If the holder is the
// only member, only etcd confirms its session, so no votes are needed.
func Revoking(n int) int {
	if n <= 1 {
		return 0
	}
	return n - Confirming(n) + 1
}

// Deadline returns the time until which a session is confirmed by its jury of n members. For each
// other member, sent holds when the newest heartbeat that it has confirmed was sent, or 0. The
// parameter asked is when the newest successful renewal was sent to etcd. The result is 0 if
// nothing has confirmed the session.
func (t Timing) Deadline(n int, sent []local.Time, asked local.Time) local.Time {
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

// Juror holds what a juror remembers about another node's session.
type Juror struct {
	// Session is the holder's latest session that the juror knows of.
	Session ID
	// Answered is when the juror last confirmed a new heartbeat from the session. Newest is when
	// that heartbeat was sent. Both are 0 before the first confirmation.
	Answered, Newest local.Time
	// Dead reports whether the juror has voted the session dead. It then never confirms the session
	// again.
	Dead bool
}

// Watch sets j.Session. If the session is new, j forgets the old session.
func (j *Juror) Watch(session ID) {
	if j.Session != session {
		*j = Juror{Session: session}
	}
}

// Confirm reports whether the juror confirms a heartbeat of the session, and records the
// confirmation. It confirms a copy of the newest heartbeat again, because the first answer may have
// been lost, but the copy is not a sign of life.
func (j *Juror) Confirm(now local.Time, session ID, sent local.Time) bool {
	if j.Session != session || j.Dead || sent < j.Newest {
		return false
	}
	if sent > j.Newest {
		j.Newest, j.Answered = sent, max(j.Answered, now)
	}
	return true
}

// Silent reports whether the juror has voted the session dead, or has not confirmed a heartbeat
// from it for Timing.Silence. The juror's run must also have lasted that long, because an earlier
// run may have confirmed heartbeats.
func (j *Juror) Silent(now, started local.Time, silence Timing) bool {
	return j.Dead || now.Since(max(j.Answered, started)) >= silence.Silence
}

// Vote reports whether the juror votes its session dead. If so, it never confirms the session
// again.
func (j *Juror) Vote(now, started local.Time, silence Timing) bool {
	j.Dead = j.Silent(now, started, silence)
	return j.Dead
}

// MayRevoke reports whether a session may be revoked. Its jury has n members, and votes is the
// number of members other than the holder that have voted the session dead. The parameter known is
// when the revoking node learned of the session's current revision, which a renewal in etcd would
// have changed.
func MayRevoke(now, known local.Time, n, votes int, silence Timing) bool {
	return votes >= Revoking(n) && now.Since(known) >= silence.Silence
}
