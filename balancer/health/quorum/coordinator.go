package quorum

import (
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
)

// Coordinator decides which targets one host checks, and collects the verdicts on all targets. The
// work of a call is proportional to the changes since the previous call. Only one goroutine may use
// a Coordinator:
//
//	mine := coordinator.Assign(round)            // the targets that this host checks
//	verdicts := coordinator.Judge(own)           // on all targets, from the verdicts of its own checks
//	coordinator.Assignments()                    // the targets that this host votes on
type Coordinator struct {
	self  balancer.NodeName
	round Round
	own   snap.Map[balancer.Target, balancer.Verdict]

	all, exec electorate // the nodes that check, and the nodes among them that may run programs
	targets   map[balancer.Target]*target
	alone     map[balancer.Target]bool // targets that this host decides alone
	// awaited maps targets to when they must be decided again, because a missing vote no longer
	// counts or the verdict expires.
	awaited map[balancer.Target]time.Time
	turned  []balancer.Target // targets of alone that Judge must visit

	mine        snap.Map[balancer.Target, health.Subject]
	assignments snap.Map[balancer.Target, bool]
	verdicts    snap.Map[balancer.Target, balancer.Verdict]
	shared      snap.Map[balancer.Target, balancer.Verdict] // the part of verdicts that the fleet decides
}

// target is a target that the fleet checks.
type target struct {
	subject  health.Subject
	checkers []balancer.NodeName
	// missing maps checkers without a vote to since when the vote has been missing. timedOut lists
	// the checkers that no longer count, because their vote has been missing for too long.
	missing  map[balancer.NodeName]time.Time
	timedOut []balancer.NodeName
	// since is when the verdict was reached, and lasted is how long the previous verdict lasted, as
	// far as this host knows.
	verdict balancer.Verdict
	since   time.Time
	lasted  time.Duration
	// judged reports whether votes were counted before.
	judged bool
	// unchecked is since when no node checks the target. Zero means that a node checks it, or that
	// the board can't be read.
	unchecked time.Time
}

// setVerdict sets the verdict, its time, and the duration of the previous verdict.
func (s *target) setVerdict(v balancer.Verdict, since time.Time) {
	s.lasted = 0
	if s.verdict != balancer.HealthUnknown {
		s.lasted = since.Sub(s.since)
	}
	s.verdict, s.since = v, since
}

// Round holds the inputs of a Coordinator.
type Round struct {
	// Wanted are the targets of all services. This host checks every target that the fleet does not
	// share (Subject.Fleet is false).
	Wanted snap.Map[balancer.Target, health.Subject]
	Board  Board
	// Waiting reports whether the board is being read for the first time. Until that is finished,
	// nothing is decided.
	Waiting bool
	// Alone reports whether the board is unreliable, so this host decides everything.
	Alone bool
	// Exec reports whether this host may run the programs of the fleet's exec checks.
	Exec bool
	// Now is the current time. VoteDelay limits how long after the checks a vote may take to reach
	// the board.
	Now       time.Time
	VoteDelay time.Duration
}

// New returns the coordinator for the host with this name.
func New(self balancer.NodeName) *Coordinator {
	return &Coordinator{self: self, targets: map[balancer.Target]*target{}, alone: map[balancer.Target]bool{}, awaited: map[balancer.Target]time.Time{}}
}

// Assign returns the targets that this host checks.
func (c *Coordinator) Assign(r Round) snap.Map[balancer.Target, health.Subject] {
	before := c.round
	c.round = r
	dirty := map[balancer.Target]bool{}
	elect := before.Board.Nodes != r.Board.Nodes
	if elect {
		c.updateElectorates()
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

// updateElectorates computes the electorates from the nodes on the board.
func (c *Coordinator) updateElectorates() {
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
	if s.subject.RunsProgram() {
		return c.exec
	}
	return c.all
}

// setTarget applies a change to the wanted targets, and reports whether the fleet now checks the
// target.
func (c *Coordinator) setTarget(t balancer.Target, change snap.Change[health.Subject]) bool {
	if !change.HasNew || !change.New.Fleet {
		if c.targets[t] != nil {
			delete(c.targets, t)
			delete(c.alone, t)
			delete(c.awaited, t)
			c.assignments = c.assignments.Delete(t)
			c.shared = c.shared.Delete(t)
			c.verdicts = c.verdicts.Delete(t)
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
	if s == nil { // this host may have checked the target for itself until now
		s = &target{}
		if v := c.verdicts.At(t); v != balancer.HealthUnknown {
			s.setVerdict(v, c.round.Now)
		}
		c.targets[t] = s
	}
	s.subject, s.checkers = change.New, nil
	return true
}

// Overdue reports whether a vote has been missing for so long, or a target unchecked for so long,
// that another call to Assign is due.
func (c *Coordinator) Overdue(now time.Time) bool {
	for _, due := range c.awaited {
		if !now.Before(due) {
			return true
		}
	}
	return false
}

// countCheckers returns how many of a target's checkers count. Checkers whose votes have been
// missing for too long do not count, but while the board can't be read, all checkers count.
func (c *Coordinator) countCheckers(t balancer.Target, s *target) int {
	r, silent := &c.round, s.missing
	s.missing, s.timedOut = nil, nil
	delete(c.awaited, t)
	for _, n := range s.checkers {
		if r.Alone || r.Waiting || r.Board.Votes.Has(VoteKey{t, n}) {
			continue
		}
		since, was := silent[n]
		if !was {
			since = r.Now
		}
		if s.missing == nil { // most targets need no map
			s.missing = map[balancer.NodeName]time.Time{}
		}
		s.missing[n] = since
		due := since.Add(s.subject.Confirmation() + r.VoteDelay)
		if !r.Now.Before(due) {
			s.timedOut = append(s.timedOut, n)
		} else if next, ok := c.awaited[t]; !ok || due.Before(next) {
			c.awaited[t] = due
		}
	}
	return len(s.checkers) - len(s.timedOut)
}

// settle decides whether this host checks a target and votes on it, and which verdict the target
// has.
func (c *Coordinator) settle(t balancer.Target, s *target) {
	counting := c.countCheckers(t, s)
	votes, others := c.round.Board.votes(t, s.checkers)
	allowed := c.round.Exec || !s.subject.RunsProgram()
	leaving := len(votes)*2 <= counting && c.round.Board.Votes.Has(VoteKey{t, c.self}) && c.round.Board.Nodes.Has(c.self)
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

// forget makes a target's verdict unknown if no node checks the target. It first waits as long as
// for a missing vote, because a node may start to check the target again.
func (c *Coordinator) forget(t balancer.Target, s *target, checked bool) {
	if checked || c.round.Alone || c.round.Waiting || s.verdict == balancer.HealthUnknown {
		s.unchecked = time.Time{}
		return
	}
	if s.unchecked.IsZero() {
		s.unchecked = c.round.Now
	}
	due := s.unchecked.Add(s.subject.Confirmation() + c.round.VoteDelay)
	if c.round.Now.Before(due) {
		c.awaited[t] = due
		return
	}
	delete(c.awaited, t)
	s.setVerdict(balancer.HealthUnknown, c.round.Now)
}

// decide sets a target's verdict from the votes. A new verdict's time is the current time, or when
// the votes became a majority if this host counts them for the first time.
func (c *Coordinator) decide(s *target, counting int, votes, others []Vote) {
	v, since := Decide(s.verdict, counting, votes, others)
	if s.judged || s.verdict != balancer.HealthUnknown || since.After(c.round.Now) {
		since = c.round.Now
	}
	if v != s.verdict {
		s.setVerdict(v, since)
	}
	s.judged = !c.round.Waiting
}

// adopt sets a target's verdict to the verdict of this host's own checks, if they have one.
func (c *Coordinator) adopt(t balancer.Target, s *target) {
	if v, ok := c.own.Get(t); ok && v != s.verdict {
		s.setVerdict(v, c.round.Now)
	}
}

func (c *Coordinator) publish(t balancer.Target, s *target) {
	if s.verdict == balancer.HealthUnknown {
		c.shared, c.verdicts = c.shared.Delete(t), c.verdicts.Delete(t)
		return
	}
	c.shared, c.verdicts = c.shared.Set(t, s.verdict), c.verdicts.Set(t, s.verdict)
}

// follow publishes the verdict of this host's own checks for a target that the fleet does not
// check.
func (c *Coordinator) follow(t balancer.Target) {
	if v, ok := c.own.Get(t); ok {
		c.verdicts = c.verdicts.Set(t, v)
	} else {
		c.verdicts = c.verdicts.Delete(t)
	}
}

// Judge returns the verdicts on all targets. The map own holds the verdicts of this host's own
// checks.
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

// Len returns the number of the fleet's targets.
func (c *Coordinator) Len() int { return len(c.targets) }

// Has reports whether the fleet checks a target.
func (c *Coordinator) Has(t balancer.Target) bool { return c.targets[t] != nil }

// judge applies the verdict of this host's own checks to a target. It does nothing if the fleet
// decides the verdict.
func (c *Coordinator) judge(t balancer.Target) {
	switch s := c.targets[t]; {
	case s == nil && c.mine.Has(t):
		c.follow(t)
	case c.alone[t]:
		c.adopt(t, s)
		c.publish(t, s)
	}
}

// Assignments returns the targets that this host votes on.
func (c *Coordinator) Assignments() snap.Map[balancer.Target, bool] { return c.assignments }

// Verdicts returns the last result of Judge.
func (c *Coordinator) Verdicts() snap.Map[balancer.Target, balancer.Verdict] { return c.verdicts }

// Shared returns the verdicts on the fleet's targets.
func (c *Coordinator) Shared() snap.Map[balancer.Target, balancer.Verdict] { return c.shared }

// Tally is the verdict on one of the fleet's targets, with the votes.
type Tally struct {
	// Verdict is the fleet's verdict, or this host's if Alone is set.
	Verdict balancer.Verdict
	// Since is when this host adopted the verdict, or when the votes became a majority if the host
	// found the majority on the board. Lasted is how long the previous verdict lasted, or 0.
	Since  time.Time
	Lasted time.Duration
	// Alone reports whether this host decides from its own checks.
	Alone bool
	// Checkers lists the nodes that check the target. Votes holds their votes by node. TimedOut
	// lists the checkers that do not count, because their votes have been missing for too long.
	Checkers []balancer.NodeName
	Votes    map[balancer.NodeName]Vote
	TimedOut []balancer.NodeName
}

// Tally returns the verdict and votes on a target, and whether the fleet checks it.
func (c *Coordinator) Tally(t balancer.Target) (Tally, bool) {
	s := c.targets[t]
	if s == nil {
		return Tally{}, false
	}
	out := Tally{Verdict: s.verdict, Since: s.since, Lasted: s.lasted, Alone: c.alone[t], Checkers: s.checkers, TimedOut: s.timedOut, Votes: map[balancer.NodeName]Vote{}}
	for ballot, v := range c.round.Board.votesOn(t) {
		out.Votes[ballot.Node] = *v
	}
	return out, true
}
