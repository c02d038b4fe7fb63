package failover

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer/failover/local"
)

// session is this node's own session.
type session struct {
	*env
	etcd   *view
	writer *writer
	id     ID
	// live reports whether the session exists in etcd, and revision is its record's revision.
	live     bool
	revision int64
	// jury lists the nodes that confirm the session. next is the jury in a write whose outcome is
	// unknown. Until the outcome is known, both juries must confirm the session.
	jury, next []string
	// confirmed maps each juror to when the newest heartbeat that it has confirmed was sent.
	// renewed is when the newest successful renewal in etcd was sent. deadline is computed from
	// both.
	confirmed map[string]local.Time
	renewed   local.Time
	deadline  local.Time
	// writing reports whether a write of the session's record is pending. again is when the next
	// write may start: one heartbeat interval after the last write.
	writing bool
	again   local.Time
}

func newSession(e *env, etcd *view, w *writer) *session {
	s := &session{env: e, etcd: etcd, writer: w}
	s.reset(0)
	return s
}

// reset replaces the session with a new session that is not in etcd yet. Changes to the session's
// record up to this revision are ignored.
func (s *session) reset(revision int64) {
	*s = session{env: s.env, etcd: s.etcd, writer: s.writer, id: s.o.NewID(), confirmed: map[string]local.Time{}, revision: revision}
}

// begin creates the session in etcd if there is no session. The gate must be closed and no VIP
// bound.
func (s *session) begin() {
	name := s.o.Name
	if s.live || s.writing || s.now < s.again || !s.etcd.registered() {
		return
	}
	if old := s.etcd.sessions[name]; old != nil && !s.replaces(old) {
		return // the old session must first be revoked, like any other session
	}
	w := Write{If: []Condition{{Key{Sessions, name}, s.etcd.sessions.at(name)}}}
	if fence := s.etcd.fences[name]; fence != nil {
		w.Delete = append(w.Delete, Key{Fences, name}) // this host is evidently not off
	}
	s.put(w, s.chooseJury())
}

// replaces reports whether this node may replace an existing session under its name. The session
// must belong to the same boot and namespace of this machine, to an earlier boot of this machine,
// or to a machine that an operator has declared to be off. An earlier boot's session must also be
// silent. If it is not, this machine may be a copy of a running machine with the same ID and name.
func (s *session) replaces(old *record[Session]) bool {
	before := old.value.Machine
	silent := s.now.Since(old.known) >= max(old.value.Silence, s.o.Timing.Silence)
	return !old.unreadable && (before == s.o.Member.Machine || silent && rebooted(before, s.o.Member.Machine) || s.etcd.fences[s.o.Name] != nil)
}

// obstructed reports whether etcd has long had a session under this node's name that this node
// can't replace.
func (s *session) obstructed() bool {
	old := s.etcd.sessions[s.o.Name]
	return !s.live && old != nil && s.now.Since(old.known) > 2*s.o.Timing.Silence && !s.replaces(old)
}

// put adds the session's record with the given jury to the write w, and starts the write.
func (s *session) put(w Write, jury []string) {
	value := Session{ID: s.id, Machine: s.o.Member.Machine, Jury: jury, Timing: s.o.Timing}
	w.Put = append(w.Put, Put{Key{Sessions, s.o.Name}, encode(value)})
	sent, id := s.now, s.id
	s.writing = true
	if !slices.Equal(jury, s.jury) {
		s.next = jury
	}
	s.confirm()
	s.writer.write(w, func(o Outcome, revision int64) {
		if s.id != id {
			return
		}
		s.writing, s.again = false, s.now.Add(s.o.Timing.Beat)
		if o != Done || revision < s.revision {
			return // if etcd has executed the write anyway, its watch will report the change
		}
		s.renewed = max(s.renewed, sent)
		s.writer.apply(&w, revision)
		s.confirm() // needed because etcd's watch may have been faster
	})
}

// learn processes a change to the session's record in etcd, and reports whether other nodes have
// revoked the session.
func (s *session) learn(c RecordChange) (revoked bool) {
	if c.Revision <= s.revision {
		return false
	}
	r := s.etcd.sessions[s.o.Name]
	if r == nil || r.value.ID != s.id {
		return s.live
	}
	// A pending write of the session's record compares an older revision, so it can no longer
	// succeed.
	if !s.live {
		s.do(local.Note{Kind: local.NoteSession, Text: "started session " + s.id.String()})
	}
	s.live = true
	s.revision = r.revision
	s.jury = r.value.Jury
	s.next = nil
	s.confirm()
	return false
}

// answered processes a juror's confirmation of a heartbeat that this node sent, and reports whether
// the confirmation is newer than the juror's last confirmation.
func (s *session) answered(m Message) bool {
	if !s.live || m.Session != s.id || m.Sent <= s.confirmed[m.From] || m.Sent > s.now {
		return false
	}
	s.confirmed[m.From] = m.Sent
	s.confirm()
	return true
}

// confirm computes the session's deadline from the confirmations of its juries.
func (s *session) confirm() {
	d := s.deadlineBy(s.jury)
	if s.next != nil {
		d = min(d, s.deadlineBy(s.next))
	}
	s.deadline = d
}

func (s *session) deadlineBy(jury []string) local.Time {
	var sent []local.Time
	for _, j := range jury {
		if j != s.o.Name {
			sent = append(sent, s.confirmed[j])
		}
	}
	return s.o.Timing.Deadline(len(jury), sent, s.renewed)
}

// passes reports whether the gate may be opened or refreshed, or an address bound, at this time.
func (s *session) passes() bool { return s.live && s.o.Timing.Passes(s.now, s.deadline) }

// owns reports whether etcd names the session as the owner of a VIP.
func (s *session) owns(v *vip) bool {
	o := s.etcd.owners[v.name]
	return s.live && o != nil && o.value.Session == s.id
}

// ifMine returns a write that etcd executes only if the session's record has not changed since this
// node last received it.
func (s *session) ifMine() Write {
	return Write{If: []Condition{{Key{Sessions, s.o.Name}, s.revision}}}
}

// renew writes the session's record to etcd again if the peers' confirmations do not last long
// enough. The write confirms the session.
func (s *session) renew() {
	if s.live && !s.writing && s.now >= s.again && !s.lasts(s.deadline) {
		s.put(s.ifMine(), s.jury)
	}
}

// lasts reports whether a deadline is far enough away that no renewal is needed.
func (s *session) lasts(deadline local.Time) bool {
	t := s.o.Timing
	return deadline.Since(s.now) > t.Gate+(t.Confirm-t.Gate)/2
}

// changeJury writes a different jury if nodes have joined or left.
func (s *session) changeJury() {
	if !s.live || s.writing || s.now < s.again {
		return
	}
	jury := s.chooseJury()
	if slices.Equal(jury, s.jury) {
		return
	}
	if !s.lasts(s.deadlineBy(jury)) {
		jury = s.jury // etcd must confirm the session first, because the next jury has not
	}
	s.put(s.ifMine(), jury)
}

// chooseJury returns this node and up to four other nodes. It prefers current jurors, and then
// nodes in other zones.
func (s *session) chooseJury() []string {
	var others []string
	for name, m := range s.etcd.members {
		if name != s.o.Name && !m.unreadable {
			others = append(others, name)
		}
	}
	rank := func(name string) (r int) {
		if !slices.Contains(s.jury, name) {
			r = 2
		}
		if zone := s.etcd.members[name].value.Zone; zone == s.o.Member.Zone {
			r++
		}
		return r
	}
	slices.SortFunc(others, func(a, b string) int {
		return compare(rank(a)-rank(b), score(s.o.Name, b), score(s.o.Name, a), a, b)
	})
	jury := append([]string{s.o.Name}, others[:min(len(others), MaxJurors-1)]...)
	slices.Sort(jury)
	return jury
}

// confirmations returns the age of each juror's newest confirmation; -1 means that there was none.
func (s *session) confirmations() map[string]time.Duration {
	ages := map[string]time.Duration{}
	for _, j := range s.jury {
		if sent := s.confirmed[j]; sent > 0 {
			ages[j] = s.now.Since(sent)
		} else if j != s.o.Name {
			ages[j] = -1
		}
	}
	return ages
}

// silentJurors names the jurors that no longer confirm the session. It always includes etcd, which
// could also have confirmed the session.
func (s *session) silentJurors() string {
	var names []string
	for _, j := range s.jury {
		if j != s.o.Name && s.now.Since(s.confirmed[j]) >= s.o.Timing.Confirm-s.o.Timing.Gate {
			names = append(names, j)
		}
	}
	if len(names) == 0 {
		return "etcd"
	}
	return strings.Join(names, ", ") + " and etcd"
}

func formatSeconds(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return strconv.FormatFloat(d.Round(10*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
}
