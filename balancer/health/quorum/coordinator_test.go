package quorum_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/test/wait"
)

// verdicts, assignments and subjects are types of the results of a coordinator.
type (
	verdicts    = snap.Map[balancer.Target, balancer.Verdict]
	assignments = snap.Map[balancer.Target, bool]
	subjects    = snap.Map[balancer.Target, health.Subject]
)

// model is a reference coordinator. It computes everything from scratch in each round.
type model struct {
	self    balancer.NodeName
	verdict map[balancer.Target]balancer.Verdict
	silent  map[quorum.VoteKey]time.Time
	// unchecked maps each target that no node may check to since when no node may check it.
	unchecked map[balancer.Target]time.Time
}

func (m *model) step(r quorum.Round, own func(subjects) verdicts) (mine subjects, must assignments, out verdicts) {
	alone := map[balancer.Target]bool{}
	for t, s := range r.Wanted.All() {
		program := s.Health.Type == balancer.ExecHealth
		if !s.Fleet {
			mine = mine.Set(t, s)
			continue
		}
		var able []balancer.NodeName
		for n, c := range r.Board.Nodes.All() {
			if c.Exec || !program {
				able = append(able, n)
			}
		}
		checkers := quorum.Checkers(s.At, able)
		counting := len(checkers)
		for _, n := range nodes(6) {
			b := quorum.VoteKey{Target: t, Node: n}
			switch since, was := m.silent[b]; {
			case !slices.Contains(checkers, n) || r.Board.Votes.Has(b) || r.Alone || r.Waiting:
				delete(m.silent, b)
			case !was:
				m.silent[b] = r.Now
			case r.Now.Sub(since) >= 2*time.Second*3+time.Second+r.VoteDelay:
				counting--
			}
		}
		var votes, others []quorum.Vote
		for ballot, v := range r.Board.Votes.All() {
			switch {
			case ballot.Target != t:
			case slices.Contains(checkers, ballot.Node):
				votes = append(votes, *v)
			case r.Board.Nodes.Has(ballot.Node):
				others = append(others, *v)
			}
		}
		stays := r.Board.Nodes.Has(m.self) && r.Board.Votes.Has(quorum.VoteKey{Target: t, Node: m.self}) && len(votes)*2 <= counting
		assigned := (slices.Contains(checkers, m.self) || stays) && (!program || r.Exec)
		if assigned {
			must = must.Set(t, true)
		}
		switch since, was := m.unchecked[t]; {
		case counting > 0 || !program || r.Exec || r.Alone || r.Waiting || m.verdict[t] == balancer.HealthUnknown:
			delete(m.unchecked, t)
		case !was:
			m.unchecked[t] = r.Now
		case r.Now.Sub(since) >= 2*time.Second*3+time.Second+r.VoteDelay:
			m.verdict[t] = balancer.HealthUnknown
		}
		alone[t] = r.Alone || counting == 0 && !r.Waiting
		if assigned || alone[t] && (!program || r.Exec) {
			mine = mine.Set(t, s)
		}
		if !alone[t] {
			m.verdict[t], _ = quorum.Decide(m.verdict[t], counting, votes, others)
		}
	}
	found := own(mine)
	for t, s := range r.Wanted.All() {
		if v, ok := found.Get(t); ok && (!s.Fleet || alone[t]) || !s.Fleet {
			m.verdict[t] = v
		}
	}
	maps.DeleteFunc(m.unchecked, func(t balancer.Target, _ time.Time) bool { return !r.Wanted.At(t).Fleet })
	for b := range m.silent {
		if !r.Wanted.At(b.Target).Fleet {
			delete(m.silent, b)
		}
	}
	for t := range m.verdict {
		if !r.Wanted.Has(t) {
			delete(m.verdict, t)
		} else if m.verdict[t] != balancer.HealthUnknown {
			out = out.Set(t, m.verdict[t])
		}
	}
	return mine, must, out
}

// TestIncrementalCoordinator applies random changes. After each change, the coordinator's results
// must equal the model's, which computes everything from scratch.
func TestIncrementalCoordinator(t *testing.T) {
	for seed := range uint64(wait.Soak(60, 300)) {
		r := rand.New(rand.NewPCG(seed, 6))
		h := history{r: r, own: map[balancer.Target]balancer.Verdict{}}
		coordinator, reference := quorum.New("host1"), &model{"host1", map[balancer.Target]balancer.Verdict{}, map[quorum.VoteKey]time.Time{}, map[balancer.Target]time.Time{}}
		for step := range 60 {
			h.change()
			mine := coordinator.Assign(h.round)
			found := h.found(mine)
			all := coordinator.Judge(found)
			wantMine, wantAssignments, want := reference.step(h.round, func(subjects) verdicts { return found })
			if d := differ(mine, wantMine) + differ(coordinator.Assignments(), wantAssignments) + differ(all, want); d != "" {
				t.Fatalf("seed %d, step %d, %s: %s", seed, step, h.last, d)
			}
		}
	}
}

func differ[K snap.Ordered[K], V comparable](got, want snap.Map[K, V]) (text string) {
	for key, c := range snap.Diff(got, want) {
		text += fmt.Sprintf("\n%v: got %+v, want %+v", key, c.Old, c.New)
	}
	return text
}

// history generates random inputs for the coordinator of a single host.
type history struct {
	r     *rand.Rand
	round quorum.Round
	own   map[balancer.Target]balancer.Verdict
	last  string
}

var either = []balancer.Verdict{balancer.HealthUp, balancer.HealthDown, balancer.HealthUnknown}

func target(i int) balancer.Target {
	at := places(i + 1)[i]
	return balancer.Target{Service: balancer.Name([]string{"a", "b"}[i%2]), Addr: at.Addr(), Port: at.Port()}
}

func subject(t balancer.Target, kind balancer.HealthType, fleet bool) health.Subject {
	return health.Subject{At: netip.AddrPortFrom(t.Addr, t.Port), Proto: balancer.TCP, Health: definitions[kind], Fleet: fleet}
}

var definitions = map[balancer.HealthType]*balancer.Health{
	balancer.TCPHealth:  {Type: balancer.TCPHealth, Interval: 2 * time.Second, Timeout: time.Second, Rise: 2, Fall: 3},
	balancer.ExecHealth: {Type: balancer.ExecHealth, Interval: 2 * time.Second, Timeout: time.Second, Rise: 3, Fall: 1},
}

func (h *history) change() {
	r, round := h.r, &h.round
	round.Now, round.VoteDelay = round.Now.Add(time.Duration(r.IntN(1500))*time.Millisecond), 4*time.Second
	t, n := target(r.IntN(8)), nodes(6)[r.IntN(6)]
	switch k := r.IntN(20); {
	case k < 3:
		kind := []balancer.HealthType{balancer.TCPHealth, balancer.ExecHealth}[r.IntN(2)]
		round.Wanted = round.Wanted.Set(t, subject(t, kind, r.IntN(4) > 0))
	case k < 4:
		round.Wanted = round.Wanted.Delete(t)
	case k < 7:
		round.Board.Nodes = round.Board.Nodes.Set(n, quorum.Checker{Exec: r.IntN(2) == 0})
	case k < 9:
		round.Board.Nodes = round.Board.Nodes.Delete(n)
	case k < 15:
		round.Board.Votes = round.Board.Votes.Set(quorum.VoteKey{Target: t, Node: n}, &quorum.Vote{Verdict: either[r.IntN(3)], Since: time.Unix(r.Int64N(100), 0)})
	case k < 17:
		round.Board.Votes = round.Board.Votes.Delete(quorum.VoteKey{Target: t, Node: n})
	case k < 18:
		round.Alone = !round.Alone
	case k < 19:
		round.Exec = !round.Exec
	default:
		round.Waiting = !round.Waiting
	}
	h.own[t] = either[r.IntN(3)]
	h.last = fmt.Sprintf("%s and %s", t, n)
}

// found returns the verdicts of this host's own checks for the targets in mine.
func (h *history) found(mine subjects) (out verdicts) {
	for t, v := range h.own {
		if mine.Has(t) && v != balancer.HealthUnknown {
			out = out.Set(t, v)
		}
	}
	return out
}

// assembly simulates hosts that share a board of votes. The hosts write and delete their votes one
// at a time. The host liar finds every target down, and the other hosts find the truth.
type assembly struct {
	r     *rand.Rand
	board quorum.Board
	want  subjects
	truth map[balancer.Target]balancer.Verdict
	hosts map[balancer.NodeName]*quorum.Coordinator
	liar  balancer.NodeName
	clock int64
}

func (a *assembly) join(n balancer.NodeName) {
	a.hosts[n] = quorum.New(n)
	a.board.Nodes = a.board.Nodes.Set(n, quorum.Checker{})
}

// removeNode removes a node and its votes from the board.
func (a *assembly) removeNode(n balancer.NodeName) {
	delete(a.hosts, n)
	a.board.Nodes = a.board.Nodes.Delete(n)
	for ballot := range a.board.Votes.Keys() {
		if ballot.Node == n {
			a.board.Votes = a.board.Votes.Delete(ballot)
		}
	}
}

// readBoard makes the host n read the board. It returns the keys of the votes that the host wants
// to write or delete, and the host's verdicts.
func (a *assembly) readBoard(n balancer.NodeName) (writes []quorum.VoteKey, all verdicts) {
	c := a.hosts[n]
	c.Assign(quorum.Round{Wanted: a.want, Board: a.board, VoteDelay: time.Minute})
	all = c.Judge(verdicts{})
	for t := range a.want.Keys() {
		b := quorum.VoteKey{Target: t, Node: n}
		vote := a.board.Votes.At(b)
		if c.Assignments().Has(t) != (vote != nil) || vote != nil && vote.Verdict != a.finds(n, t) {
			writes = append(writes, b)
		}
	}
	return writes, all
}

func (a *assembly) finds(n balancer.NodeName, t balancer.Target) balancer.Verdict {
	if n == a.liar {
		return balancer.HealthDown
	}
	return a.truth[t]
}

// write writes or deletes the vote b, whichever its host wants.
func (a *assembly) write(b quorum.VoteKey) {
	a.clock++
	if a.hosts[b.Node].Assignments().Has(b.Target) {
		a.board.Votes = a.board.Votes.Set(b, &quorum.Vote{Verdict: a.finds(b.Node, b.Target), Since: time.Unix(a.clock, 0)})
	} else {
		a.board.Votes = a.board.Votes.Delete(b)
	}
}

// writeUntilStable makes the hosts write and delete votes in random order until no host wants to
// write. After each write, all hosts read the board, and each is called with every host's
// verdicts.
func (a *assembly) writeUntilStable(each func(balancer.NodeName, verdicts)) {
	for {
		var writes []quorum.VoteKey
		for n := range a.hosts {
			w, all := a.readBoard(n)
			each(n, all)
			writes = append(writes, w...)
		}
		if len(writes) == 0 {
			return
		}
		slices.SortFunc(writes, quorum.VoteKey.Compare)
		a.write(writes[a.r.IntN(len(writes))])
	}
}

// TestVerdictDuringHostChanges adds and removes hosts while one host finds every target down. There
// are always at least three hosts, so no host may ever regard a target that is up as down. When the
// board is stable, all hosts must agree on the true state of each target, and each target must have
// three votes.
func TestVerdictDuringHostChanges(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		a := &assembly{r: r, truth: map[balancer.Target]balancer.Verdict{}, hosts: map[balancer.NodeName]*quorum.Coordinator{}, liar: "host2"}
		for i := range 6 {
			a.want = a.want.Set(target(i), subject(target(i), balancer.TCPHealth, true))
			a.truth[target(i)] = balancer.HealthUp
		}
		for _, n := range nodes(3) {
			a.join(n)
		}
		for range 12 {
			a.writeUntilStable(func(n balancer.NodeName, all verdicts) {
				for target, v := range all.All() {
					if v == balancer.HealthDown && a.truth[target] == balancer.HealthUp {
						t.Fatalf("seed %d: %s regards %s as down, want up; votes: %s", seed, n, target, describeVotes(a.board, target))
					}
				}
			})
			for n := range a.hosts {
				_, all := a.readBoard(n)
				for target, truth := range a.truth {
					if all.At(target) != truth {
						t.Fatalf("seed %d: %s regards %s as %q, want %s; votes: %s", seed, n, target, all.At(target), truth, describeVotes(a.board, target))
					}
				}
			}
			if a.board.Votes.Len() != quorum.Size*a.want.Len() {
				t.Fatalf("seed %d: votes on the stable board = %d for %d targets, want three for each", seed, a.board.Votes.Len(), a.want.Len())
			}
			switch n := nodes(8)[r.IntN(8)]; {
			case r.IntN(6) == 0:
				a.truth[target(r.IntN(6))] = balancer.HealthDown
			case r.IntN(6) == 0: // many nodes join at once, so all checkers of a target may change
				for _, n := range nodes(8) {
					if a.hosts[n] == nil {
						a.join(n)
					}
				}
			case a.hosts[n] == nil:
				a.join(n)
			case len(a.hosts) > 3:
				a.removeNode(n)
			}
		}
	}
}

func describeVotes(b quorum.Board, t balancer.Target) (text string) {
	for ballot, v := range b.Votes.All() {
		if ballot.Target == t {
			text += fmt.Sprintf("%s:%s ", ballot.Node, v.Verdict)
		}
	}
	return text
}
