package quorum

import (
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
)

// Coordinator is one host's part: what it has to check, and what is known of all targets. Its work is what has changed. It
// is used by one goroutine:
//
//	mine := coordinator.Assign(round)            // of what is wanted, what this host checks
//	verdicts := coordinator.Judge(runner's)      // of all that is wanted
//	coordinator.Assignments()                    // what this host votes about
type Coordinator struct {
	self  balancer.NodeName
	round Round
	own   snap.Map[balancer.Target, balancer.Verdict]

	all, exec electorate // the nodes that check, and those of them that may run programs
	targets   map[balancer.Target]*target
	alone     map[balancer.Target]bool // the targets that this host decides alone about
	// awaited are the targets that lack a vote, with when its checker ceases to count.
	awaited map[balancer.Target]time.Time
	turned  []balancer.Target // those of them that Judge has to look at, whatever has changed

	mine        snap.Map[balancer.Target, health.Subject]
	assignments snap.Map[balancer.Target, bool]
	verdicts    snap.Map[balancer.Target, balancer.Verdict]
	shared      snap.Map[balancer.Target, balancer.Verdict] // those of the targets
}

// target is what is known of one target that the fleet checks.
type target struct {
	subject  health.Subject
	checkers []balancer.NodeName
	// silent are the checkers without a vote, with since when this host has been missing it; mute those of them that don't
	// count any more.
	silent map[balancer.NodeName]time.Time
	mute   []balancer.NodeName
	// verdict holds since then; before it, another one did for so long, as far as this host knows.
	verdict balancer.Verdict
	since   time.Time
	lasted  time.Duration
	// judged: the votes were looked at before.
	judged bool
	// unchecked is since when no node checks it; zero means one does, or the board is away.
	unchecked time.Time
}

// take makes v the verdict, since a time.
func (s *target) take(v balancer.Verdict, since time.Time) {
	s.lasted = 0
	if s.verdict != balancer.HealthUnknown {
		s.lasted = since.Sub(s.since)
	}
	s.verdict, s.since = v, since
}

// Round is what a Coordinator goes by.
type Round struct {
	// Wanted are the targets of all services. Those that are not the fleet's (Subject.Fleet) pass through.
	Wanted snap.Map[balancer.Target, health.Subject]
	Board  Board
	// Waiting: the board is being read for the first time. Nothing is decided yet.
	Waiting bool
	// Alone: the board is not to be relied on, and this host decides about everything.
	Alone bool
	// Exec: this host may run the programs that the fleet's services ask for.
	Exec bool
	// Now is the time. Patience is how long a vote may take to the board, beside the checks.
	Now      time.Time
	Patience time.Duration
}

// New returns the part of the host of that name.
func New(self balancer.NodeName) *Coordinator {
	return &Coordinator{self: self, targets: map[balancer.Target]*target{}, alone: map[balancer.Target]bool{}, awaited: map[balancer.Target]time.Time{}}
}

// Assign returns what this host checks.
func (c *Coordinator) Assign(r Round) snap.Map[balancer.Target, health.Subject] {
	before := c.round
	c.round = r
	dirty := map[balancer.Target]bool{}
	elect := before.Board.Nodes != r.Board.Nodes
	if elect {
		c.convene()
	}
	if elect || before.Waiting != r.Waiting || before.Alone != r.Alone || before.Exec != r.Exec {
		for t := range c.targets {
			dirty[t] = true
		}
	}
	for t, change := range snap.Diff(before.Wanted, r.Wanted) {
		dirty[t] = c.setTarget(t, change)
	}
	for ballot := range snap.Diff(before.Board.Votes, r.Board.Votes) {
		dirty[ballot.Target] = true
	}
	for t, due := range c.awaited {
		if !r.Now.Before(due) {
			dirty[t] = true
		}
	}
	for t := range dirty {
		if s := c.targets[t]; s != nil {
			if elect || s.checkers == nil {
				s.checkers = c.electorate(s).checkers(s.subject.At)
			}
			c.settle(t, s)
		}
	}
	return c.mine
}

// convene finds out who is there.
func (c *Coordinator) convene() {
	var all, exec []balancer.NodeName
	for n, checker := range c.round.Board.Nodes.All() {
		all = append(all, n)
		if checker.Exec {
			exec = append(exec, n)
		}
	}
	c.all, c.exec = newElectorate(all), newElectorate(exec)
}

func (c *Coordinator) electorate(s *target) electorate {
	if s.subject.Health.Type == balancer.ExecHealth {
		return c.exec
	}
	return c.all
}

// setTarget takes in a target that is wanted otherwise than before, and reports whether it is the fleet's.
func (c *Coordinator) setTarget(t balancer.Target, change snap.Change[health.Subject]) bool {
	if !change.HasNew || !change.New.Fleet {
		if c.targets[t] != nil {
			delete(c.targets, t)
			delete(c.alone, t)
			delete(c.awaited, t)
			c.assignments, c.shared, c.verdicts = c.assignments.Delete(t), c.shared.Delete(t), c.verdicts.Delete(t)
		}
		if change.HasNew {
			c.mine = c.mine.Set(t, change.New)
			c.follow(t)
		} else {
			c.mine, c.verdicts = c.mine.Delete(t), c.verdicts.Delete(t)
		}
		return false
	}
	s := c.targets[t]
	if s == nil { // it may be one that this host has checked for itself until now
		s = &target{}
		if v := c.verdicts.At(t); v != balancer.HealthUnknown {
			s.take(v, c.round.Now)
		}
		c.targets[t] = s
	}
	s.subject, s.checkers = change.New, nil
	return true
}

// Overdue reports whether a vote has been missing for so long that Assign would come to something else.
func (c *Coordinator) Overdue(now time.Time) bool {
	for _, due := range c.awaited {
		if !now.Before(due) {
			return true
		}
	}
	return false
}

// count returns how many of the checkers of a target count: all but those whose votes have been missing for too long. While
// the board is away, no checker is missed.
func (c *Coordinator) count(t balancer.Target, s *target) int {
	r, silent := &c.round, s.silent
	s.silent, s.mute = nil, nil
	delete(c.awaited, t)
	for _, n := range s.checkers {
		if r.Alone || r.Waiting || r.Board.Votes.Has(Ballot{t, n}) {
			continue
		}
		since, was := silent[n]
		if !was {
			since = r.Now
		}
		if s.silent == nil { // most targets need none
			s.silent = map[balancer.NodeName]time.Time{}
		}
		s.silent[n] = since
		due := since.Add(grace(s.subject.Health) + r.Patience)
		if !r.Now.Before(due) {
			s.mute = append(s.mute, n)
		} else if next, ok := c.awaited[t]; !ok || due.Before(next) {
			c.awaited[t] = due
		}
	}
	return len(s.checkers) - len(s.mute)
}

// grace is how long it takes a checker to come to its own verdict. One that goes on from what others have found may need
// a whole row of results for that.
func grace(h *balancer.Health) time.Duration {
	return h.Interval*time.Duration(max(h.Rise, h.Fall)) + h.Timeout
}

// settle finds out what a target comes to.
func (c *Coordinator) settle(t balancer.Target, s *target) {
	counting := c.count(t, s)
	votes, others := c.round.Board.votes(t, s.checkers)
	allowed := c.round.Exec || s.subject.Health.Type != balancer.ExecHealth
	leaving := len(votes)*2 <= counting && c.round.Board.Votes.Has(Ballot{t, c.self}) && c.round.Board.Nodes.Has(c.self)
	assigned := allowed && (slices.Contains(s.checkers, c.self) || leaving)
	if assigned {
		c.assignments = c.assignments.Set(t, true)
	} else {
		c.assignments = c.assignments.Delete(t)
	}
	c.forget(t, s, counting > 0 || allowed)
	if alone := c.round.Alone || counting == 0 && !c.round.Waiting; alone {
		c.alone[t] = true
		c.turned = append(c.turned, t)
	} else {
		delete(c.alone, t)
		c.decide(s, counting, votes, others)
	}
	if allowed && (assigned || c.alone[t]) {
		c.mine = c.mine.Set(t, s.subject)
	} else {
		c.mine = c.mine.Delete(t)
	}
	c.publish(t, s)
}

// forget gives up what is known of a target that no node checks, this one neither. A node that is about to come back has the time for that
// that it has for its votes.
func (c *Coordinator) forget(t balancer.Target, s *target, checked bool) {
	if checked || c.round.Alone || c.round.Waiting || s.verdict == balancer.HealthUnknown {
		s.unchecked = time.Time{}
		return
	}
	if s.unchecked.IsZero() {
		s.unchecked = c.round.Now
	}
	due := s.unchecked.Add(grace(s.subject.Health) + c.round.Patience)
	if c.round.Now.Before(due) {
		c.awaited[t] = due
		return
	}
	delete(c.awaited, t)
	s.take(balancer.HealthUnknown, c.round.Now)
}

// decide makes what votes come to the verdict of a target. It is so from now on, but where this host looks for the first
// time: then it is so since the votes came to it.
func (c *Coordinator) decide(s *target, counting int, votes, others []Vote) {
	v, since := Decide(s.verdict, counting, votes, others)
	if s.judged || s.verdict != balancer.HealthUnknown || since.After(c.round.Now) {
		since = c.round.Now
	}
	if v != s.verdict {
		s.take(v, since)
	}
	s.judged = !c.round.Waiting
}

// adopt makes this host's own verdict that of a target, where it has one.
func (c *Coordinator) adopt(t balancer.Target, s *target) {
	if v, ok := c.own.Get(t); ok && v != s.verdict {
		s.take(v, c.round.Now)
	}
}

func (c *Coordinator) publish(t balancer.Target, s *target) {
	if s.verdict == balancer.HealthUnknown {
		c.shared, c.verdicts = c.shared.Delete(t), c.verdicts.Delete(t)
		return
	}
	c.shared, c.verdicts = c.shared.Set(t, s.verdict), c.verdicts.Set(t, s.verdict)
}

// follow makes the verdict of a target that is not the fleet's the one of this host's checks.
func (c *Coordinator) follow(t balancer.Target) {
	if v, ok := c.own.Get(t); ok {
		c.verdicts = c.verdicts.Set(t, v)
	} else {
		c.verdicts = c.verdicts.Delete(t)
	}
}

// Judge returns the verdicts on all targets, given those that this host's own checks came to.
func (c *Coordinator) Judge(own snap.Map[balancer.Target, balancer.Verdict]) snap.Map[balancer.Target, balancer.Verdict] {
	before := c.own
	c.own = own
	for t := range snap.Diff(before, own) {
		c.judge(t)
	}
	for _, t := range c.turned {
		c.judge(t)
	}
	c.turned = nil
	return c.verdicts
}

// Len is the number of the fleet's targets.
func (c *Coordinator) Len() int { return len(c.targets) }

// Has reports whether a target is one of the fleet's.
func (c *Coordinator) Has(t balancer.Target) bool { return c.targets[t] != nil }

// judge takes in what this host's own checks of a target came to, where that counts.
func (c *Coordinator) judge(t balancer.Target) {
	switch s := c.targets[t]; {
	case s == nil && c.mine.Has(t):
		c.follow(t)
	case c.alone[t]:
		c.adopt(t, s)
		c.publish(t, s)
	}
}

// Assignments are the targets that this host votes about.
func (c *Coordinator) Assignments() snap.Map[balancer.Target, bool] { return c.assignments }

// Verdicts are what Judge has returned last.
func (c *Coordinator) Verdicts() snap.Map[balancer.Target, balancer.Verdict] { return c.verdicts }

// Shared are the verdicts on the fleet's targets.
func (c *Coordinator) Shared() snap.Map[balancer.Target, balancer.Verdict] { return c.shared }

// Standing is what is known of one of the fleet's targets.
type Standing struct {
	// Verdict is what it comes to.
	Verdict balancer.Verdict
	// Since is when this host took it, or the votes came to it, where this host found it so. Lasted is how long that
	// before it held; 0 means there was none.
	Since  time.Time
	Lasted time.Duration
	// Alone: this host decides by its own checks.
	Alone bool
	// Checkers are the nodes that check it, Votes what is on the board about it, by node. Mute are the checkers that have
	// not voted for too long, and don't count.
	Checkers []balancer.NodeName
	Votes    map[balancer.NodeName]Vote
	Mute     []balancer.NodeName
}

// Standing returns what is known of a target, and whether it is one of the fleet's at all.
func (c *Coordinator) Standing(t balancer.Target) (Standing, bool) {
	s := c.targets[t]
	if s == nil {
		return Standing{}, false
	}
	out := Standing{Verdict: s.verdict, Since: s.since, Lasted: s.lasted, Alone: c.alone[t], Checkers: s.checkers, Mute: s.mute, Votes: map[balancer.NodeName]Vote{}}
	for ballot, v := range c.round.Board.about(t) {
		out.Votes[ballot.Node] = *v
	}
	return out, true
}
