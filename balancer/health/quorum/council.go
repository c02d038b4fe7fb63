package quorum

import (
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
)

// Council is one host's part: what it has to check, and what is known of all targets. Its work is what has changed. It
// is used by one goroutine:
//
//	mine := council.Assign(round)            // of what is wanted, what this host checks
//	verdicts := council.Judge(runner's)      // of all that is wanted
//	council.Duties()                         // what this host votes about
type Council struct {
	self  Node
	round Round
	own   snap.Map[balancer.Target, balancer.Verdict]

	all, exec electorate // the nodes that check, and those of them that may run programs
	seats     map[balancer.Target]*seat
	alone     map[balancer.Target]bool // the seats that this host decides alone about
	turned    []balancer.Target        // those of them that Judge has to look at, whatever has changed

	mine     snap.Map[balancer.Target, health.Subject]
	duties   snap.Map[balancer.Target, bool]
	verdicts snap.Map[balancer.Target, balancer.Verdict]
	shared   snap.Map[balancer.Target, balancer.Verdict] // those of the seats
}

// seat is one target that the fleet checks.
type seat struct {
	subject  health.Subject
	checkers []Node
	verdict  balancer.Verdict
	since    time.Time
}

// Round is what a Council goes by.
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
}

// New returns the part of the host of that name.
func New(self Node) *Council {
	return &Council{self: self, seats: map[balancer.Target]*seat{}, alone: map[balancer.Target]bool{}}
}

// Assign returns what this host checks.
func (c *Council) Assign(r Round) snap.Map[balancer.Target, health.Subject] {
	before := c.round
	c.round = r
	dirty := map[balancer.Target]bool{}
	elect := before.Board.Nodes != r.Board.Nodes
	if elect {
		c.convene()
	}
	if elect || before.Waiting != r.Waiting || before.Alone != r.Alone || before.Exec != r.Exec {
		for t := range c.seats {
			dirty[t] = true
		}
	}
	for t, change := range snap.Diff(before.Wanted, r.Wanted) {
		dirty[t] = c.seat(t, change)
	}
	for ballot := range snap.Diff(before.Board.Votes, r.Board.Votes) {
		dirty[ballot.Target] = true
	}
	for t := range dirty {
		if s := c.seats[t]; s != nil {
			if elect || s.checkers == nil {
				s.checkers = c.electorate(s).checkers(s.subject.At)
			}
			c.settle(t, s)
		}
	}
	return c.mine
}

// convene finds out who is there.
func (c *Council) convene() {
	var all, exec []Node
	for n, checker := range c.round.Board.Nodes.All() {
		all = append(all, n)
		if checker.Exec {
			exec = append(exec, n)
		}
	}
	c.all, c.exec = newElectorate(all), newElectorate(exec)
}

func (c *Council) electorate(s *seat) electorate {
	if s.subject.Health.Type == balancer.ExecHealth {
		return c.exec
	}
	return c.all
}

// seat takes in a target that is wanted otherwise than before, and reports whether it is the fleet's.
func (c *Council) seat(t balancer.Target, change snap.Change[health.Subject]) bool {
	if !change.HasNew || !change.New.Fleet {
		if c.seats[t] != nil {
			delete(c.seats, t)
			delete(c.alone, t)
			c.duties, c.shared, c.verdicts = c.duties.Delete(t), c.shared.Delete(t), c.verdicts.Delete(t)
		}
		if change.HasNew {
			c.mine = c.mine.Set(t, change.New)
			c.follow(t)
		} else {
			c.mine, c.verdicts = c.mine.Delete(t), c.verdicts.Delete(t)
		}
		return false
	}
	s := c.seats[t]
	if s == nil { // it may be one that this host has checked for itself until now
		s = &seat{verdict: c.verdicts.At(t)}
		c.seats[t] = s
	}
	s.subject, s.checkers = change.New, nil
	return true
}

// settle finds out what a seat comes to.
func (c *Council) settle(t balancer.Target, s *seat) {
	votes, others := c.round.Board.votes(t, s.checkers)
	allowed := c.round.Exec || s.subject.Health.Type != balancer.ExecHealth
	leaving := len(votes)*2 <= len(s.checkers) && c.round.Board.Votes.Has(Ballot{t, c.self}) && c.round.Board.Nodes.Has(c.self)
	duty := allowed && (slices.Contains(s.checkers, c.self) || leaving)
	if duty {
		c.duties = c.duties.Set(t, true)
	} else {
		c.duties = c.duties.Delete(t)
	}
	if alone := c.round.Alone || len(s.checkers) == 0 && !c.round.Waiting; alone {
		c.alone[t] = true
		c.turned = append(c.turned, t)
	} else {
		delete(c.alone, t)
		s.verdict, s.since = Decide(s.verdict, s.since, len(s.checkers), votes, others)
	}
	if allowed && (duty || c.alone[t]) {
		c.mine = c.mine.Set(t, s.subject)
	} else {
		c.mine = c.mine.Delete(t)
	}
	c.publish(t, s)
}

// adopt makes this host's own verdict that of a seat, where it has one.
func (c *Council) adopt(t balancer.Target, s *seat) {
	if v, ok := c.own.Get(t); ok && v != s.verdict {
		s.verdict, s.since = v, time.Time{}
	}
}

func (c *Council) publish(t balancer.Target, s *seat) {
	if s.verdict == balancer.HealthUnknown {
		c.shared, c.verdicts = c.shared.Delete(t), c.verdicts.Delete(t)
		return
	}
	c.shared, c.verdicts = c.shared.Set(t, s.verdict), c.verdicts.Set(t, s.verdict)
}

// follow makes the verdict of a target that is not the fleet's the one of this host's checks.
func (c *Council) follow(t balancer.Target) {
	if v, ok := c.own.Get(t); ok {
		c.verdicts = c.verdicts.Set(t, v)
	} else {
		c.verdicts = c.verdicts.Delete(t)
	}
}

// Judge returns the verdicts on all targets, given those that this host's own checks came to.
func (c *Council) Judge(own snap.Map[balancer.Target, balancer.Verdict]) snap.Map[balancer.Target, balancer.Verdict] {
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
func (c *Council) Len() int { return len(c.seats) }

// Has reports whether a target is one of the fleet's.
func (c *Council) Has(t balancer.Target) bool { return c.seats[t] != nil }

// judge takes in what this host's own checks of a target came to, where that counts.
func (c *Council) judge(t balancer.Target) {
	switch s := c.seats[t]; {
	case s == nil && c.mine.Has(t):
		c.follow(t)
	case c.alone[t]:
		c.adopt(t, s)
		c.publish(t, s)
	}
}

// Duties are the targets that this host votes about.
func (c *Council) Duties() snap.Map[balancer.Target, bool] { return c.duties }

// Shared are the verdicts on the fleet's targets.
func (c *Council) Shared() snap.Map[balancer.Target, balancer.Verdict] { return c.shared }

// Standing is what is known of one of the fleet's targets.
type Standing struct {
	// Verdict is what it comes to.
	Verdict balancer.Verdict
	// Since is when the votes came to it; zero where this host decides alone.
	Since time.Time
	// Alone: this host decides by its own checks.
	Alone bool
	// Checkers are the nodes that check it, Votes what is on the board about it, by node.
	Checkers []Node
	Votes    map[Node]Vote
}

// Standing returns what is known of a target, and whether it is one of the fleet's at all.
func (c *Council) Standing(t balancer.Target) (Standing, bool) {
	s := c.seats[t]
	if s == nil {
		return Standing{}, false
	}
	out := Standing{Verdict: s.verdict, Since: s.since, Alone: c.alone[t], Checkers: s.checkers, Votes: map[Node]Vote{}}
	for ballot, v := range c.round.Board.Votes.From(Ballot{Target: t}) {
		if ballot.Target != t {
			break
		}
		out.Votes[ballot.Node] = *v
	}
	return out, true
}
