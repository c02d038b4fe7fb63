package failover

import (
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// jurors holds what this node, as a juror, knows about other nodes' sessions, and the votes that it
// has collected.
type jurors struct {
	*env
	etcd   *view
	byNode map[string]*Juror
	// votes maps each session to the nodes that voted it dead, with their boots. asked is when each
	// session's votes were last requested.
	votes map[ID]map[string]ID
	asked local.Time
	// nextBoot identifies the new run that this node has requested to register in etcd, or is 0 if
	// it has requested none.
	nextBoot ID
}

func newJurors(e *env, etcd *view) *jurors {
	return &jurors{env: e, etcd: etcd, byNode: map[string]*Juror{}, votes: map[ID]map[string]ID{}}
}

// juror returns this node's memory as a juror of a peer's session. If it returns nil, this node
// must neither confirm the session nor vote on it. Otherwise this node's run was registered in etcd
// before the node read the session's record, so an earlier run's votes can no longer revoke the
// session.
func (j *jurors) juror(node string, session ID) *Juror {
	s := j.etcd.sessions[node]
	if session == 0 || s == nil || s.value.ID != session || !j.etcd.registered() {
		return nil
	}
	if j.byNode[node] == nil {
		j.byNode[node] = &Juror{}
	}
	j.byNode[node].Watch(session)
	return j.byNode[node]
}

// silent reports whether a session is silent from this node's point of view. It also returns the
// juror for the session (see juror).
func (j *jurors) silent(node string, s *record[Session]) (*Juror, bool) {
	own := j.juror(node, s.value.ID)
	t := s.value.Timing
	return own, own != nil && own.Silent(j.now, j.o.Started, t) && j.now.Since(s.known) >= t.Silence
}

// retractAfter is how long heartbeats must show that a session continues before this node retracts
// its vote that the session is dead. A vote against a live session usually means that this node was
// cut off.
const retractAfter = 3 * time.Second

// answer confirms the session of a peer that has sent a valid heartbeat, if etcd's records contain
// the session and the peer's address. If this node has voted the session dead, answer retracts the
// vote after retractAfter by registering a new run.
func (j *jurors) answer(from *peer, on int, m Message) {
	own := j.juror(m.From, m.Session)
	switch {
	case own == nil || len(j.etcd.at[m.From]) == 0:
	case own.Confirm(j.now, m.Session, m.Sent):
		from.alive = 0
		j.do(Send{m.From, on, Message{Kind: Answer, From: j.o.Name, Boot: j.o.Member.Boot, Session: m.Session, Sent: m.Sent}})
	case from.alive == 0:
		from.alive = j.now
	case j.now.Since(from.alive) >= retractAfter && j.nextBoot == 0: // with two pending requests, neither run would count as registered at first
		j.nextBoot = j.o.NewID()
		j.do(Register{j.nextBoot})
	}
}

// registered processes a change to this node's record in etcd. If the record contains the requested
// new run, the earlier run's votes no longer count. This node may then confirm the sessions again
// that it voted dead, and treats each of them as just confirmed.
func (j *jurors) registered() {
	m := j.etcd.members[j.o.Name]
	if m == nil || j.nextBoot == 0 || m.value.Boot != j.nextBoot {
		return
	}
	j.o.Member.Boot, j.nextBoot = j.nextBoot, 0
	for _, own := range j.byNode {
		if own.Dead {
			own.Dead, own.Answered = false, j.now
		}
	}
}

// forget deletes the collected votes of a node whose record has changed. Otherwise a delayed write
// that restores an earlier run would make that run's votes count again.
func (j *jurors) forget(node string) {
	for _, votes := range j.votes {
		delete(votes, node)
	}
}

// ask requests votes on a session from the other jurors, at most twice per heartbeat interval.
func (j *jurors) ask(node string, s *record[Session]) {
	if j.now.Since(j.asked) < j.o.Timing.Beat/2 {
		return
	}
	j.asked = j.now
	for _, name := range s.value.Jury {
		if name != node && name != j.o.Name {
			j.do(Send{name, -1, Message{Kind: Ask, From: j.o.Name, Boot: j.o.Member.Boot, Session: s.value.ID, Subject: node}})
		}
	}
}

// vote answers a request for a vote on a session, if this node votes the session dead.
func (j *jurors) vote(m Message) {
	own := j.juror(m.Subject, m.Session)
	if own == nil || m.Subject == j.o.Name || !own.Vote(j.now, j.o.Started, j.etcd.sessions[m.Subject].value.Timing) {
		return
	}
	j.do(Send{m.From, -1, Message{Kind: Vote, From: j.o.Name, Boot: j.o.Member.Boot, Session: m.Session, Subject: m.Subject}})
}

// collect stores a vote on a session and returns true, if this node has requested the vote. It
// ignores other votes.
func (j *jurors) collect(m Message) (requested bool) {
	votes := j.votes[m.Session]
	if votes != nil {
		votes[m.From] = m.Boot
	}
	return votes != nil
}

// castOwn adds this node's own vote on a silent session to the collected votes, and returns all
// votes.
func (j *jurors) castOwn(own *Juror, s *record[Session]) map[string]ID {
	votes := j.votes[s.value.ID]
	if votes == nil {
		votes = map[string]ID{}
		j.votes[s.value.ID] = votes
	}
	if own.Vote(j.now, j.o.Started, s.value.Timing) && slices.Contains(s.value.Jury, j.o.Name) {
		votes[j.o.Name] = j.o.Member.Boot
	}
	return votes
}

// voterConditions returns the jurors whose votes count (voters), and a write that succeeds only if
// their runs are still registered.
func (j *jurors) voterConditions(node string, s *record[Session], votes map[string]ID) (w Write, voters []string) {
	for _, name := range s.value.Jury {
		m := j.etcd.members[name]
		if name == node || m == nil || votes[name] == 0 || votes[name] != m.value.Boot {
			continue
		}
		voters = append(voters, name)
		w.If = append(w.If, Condition{Key{Nodes, name}, m.revision})
	}
	return w, voters
}

// lastSign returns another node's last sign of life: when this node, as a juror, last confirmed its
// session, or when the session last changed in etcd.
func (j *jurors) lastSign(node string) local.Time {
	known := j.etcd.sessions[node].known
	if own := j.byNode[node]; own != nil {
		return max(known, own.Answered)
	}
	return known
}
