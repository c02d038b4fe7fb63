package failover

import (
	"slices"

	"vipd/balancer/failover/local"
)

// MaxJurors is the maximum size of a jury, which consists of the holder and up to four other nodes.
const MaxJurors = 5

// Confirming is the number of members of a jury of n that must confirm a session, including its
// holder.
func Confirming(n int) int { return n/2 + 1 }

// Revoking is the number of votes that revoke a session, without the holder's. After these votes,
// too few members are left to confirm the session. If the holder has no other jurors, only etcd
// confirms its session, and no votes are needed.
func Revoking(n int) int {
	if n <= 1 {
		return 0
	}
	return n - Confirming(n) + 1
}

// Deadline returns the time until which a session is confirmed by its jury of n members. sent holds
// the sending times of the newest heartbeats that the other members have confirmed, or 0. The
// parameter asked is the sending time of the newest successful renewal in etcd. The result is 0 if
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

// Juror is a juror's memory of the session of one other node.
type Juror struct {
	// Session is the holder's last session that the juror knows.
	Session ID
	// Answered is the time of the last confirmation of a heartbeat of the session. Newest is the
	// sending time of that heartbeat. Both are 0 if there was no confirmation.
	Answered, Newest local.Time
	// Dead reports whether the juror has voted the session dead. It then never confirms the session
	// again.
	Dead bool
}

// Watch makes the session the juror's session. If it is a new session, the memory of the old
// session is deleted.
func (j *Juror) Watch(session ID) {
	if j.Session != session {
		*j = Juror{Session: session}
	}
}

// Confirm reports whether the juror confirms a heartbeat of the session, and records the
// confirmation. A copy of the newest heartbeat is confirmed again, because the first answer may be
// lost, but it is not a sign of life.
func (j *Juror) Confirm(now local.Time, session ID, sent local.Time) bool {
	if j.Session != session || j.Dead || sent < j.Newest {
		return false
	}
	if sent > j.Newest {
		j.Newest, j.Answered = sent, max(j.Answered, now)
	}
	return true
}

// Silent reports whether the juror has run for the time Silence without confirming a heartbeat of
// its session, or has voted the session dead. The time counts from the start of the run at the
// earliest, because an earlier run may have confirmed heartbeats.
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
// number of members other than the holder that have voted the session dead. The revoking node has
// known the session's current revision since the time known. A renewal in etcd would have changed
// the revision.
func MayRevoke(now, known local.Time, n, votes int, silence Timing) bool {
	return votes >= Revoking(n) && now.Since(known) >= silence.Silence
}
