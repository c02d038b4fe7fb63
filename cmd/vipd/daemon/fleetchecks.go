package daemon

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/probe"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/cmd/internal/journal"
	"vipd/store"
	"vipd/store/etcd"
)

// fleetChecks is this node's part in the checks that the hosts of a fleet share (health.from = "fleet"):
//
//	PREFIX/health/ -> board -> council -> what this node checks -> runner -> its verdicts -> votes -> voter -> PREFIX/health/NODE/
//	                              |
//	                              +-> the majority's verdicts -> compile, journal
//
// While no service asks for that, there is no connection, no lease and no key.
type fleetChecks struct {
	fleetChecksOptions
	council *quorum.Council
	wake    chan struct{} // holds a token: there may be something to follow
	needed  atomic.Bool   // some service asks for it

	mu sync.Mutex // guards the rest, and the council
	// board is what was last on it, or nothing. told: it was read, or etcd was given time enough for that.
	board quorum.Board
	told  bool
	// aloneUntil is when this node may rely on the board again after it was away; zero: it may.
	aloneUntil time.Time
	exec       bool // this node may run programs
	// votes are what this node has found of the targets that it checks for the fleet, voter who writes it; nil: nobody.
	// pending are targets that are still to be looked at.
	votes   snap.Map[balancer.Target, *quorum.Vote]
	voter   *etcd.HealthVoter
	duties  snap.Map[balancer.Target, bool]
	pending map[balancer.Target]bool
	// lame is since when checks can't be carried out any more that were before.
	lame map[balancer.Target]time.Time
	// since is when the verdicts that were recorded came.
	since map[balancer.Target]time.Time
	// unread and unheard are why the board is not read, and why the votes of this node are not.
	unread, unheard error
}

// fleetChecksOptions are what a fleetChecks is made of.
type fleetChecksOptions struct {
	config etcd.Config
	node   string
	runner *probe.Runner
	log    *slog.Logger
	record func(journal.Event)
	kick   func() // has verdicts be asked for again
	// lease is how long after this node's end its votes count; patience how long etcd may be away before this node
	// decides alone, and settle how long it goes on so after etcd is back: in that time those that checked meanwhile
	// say what they have found, and what those said who are gone ends with their leases.
	lease, patience, settle time.Duration
}

// votePause is the time between two looks at first results, lamePause that between two looks whether checks can still be
// carried out.
const (
	votePause = 250 * time.Millisecond
	lamePause = time.Second
)

func newFleetChecks(d *Daemon) (*fleetChecks, error) {
	return fleetChecksOf(fleetChecksOptions{
		config: etcd.Config(d.config.Etcd), node: d.config.Node, runner: d.checks.runner, log: d.Log.With("component", "health"),
		record: d.journal.Record, kick: func() { d.model.kick() }, lease: leaseTime, settle: leaseTime,
	})
}

func fleetChecksOf(o fleetChecksOptions) (*fleetChecks, error) {
	if err := etcd.CheckNode(o.node); err != nil {
		return nil, err
	}
	f := &fleetChecks{fleetChecksOptions: o, wake: make(chan struct{}, 1)}
	f.forget()
	return f, nil
}

// forget begins anew: nothing is known of the fleet.
func (f *fleetChecks) forget() {
	f.council = quorum.New(quorum.Node(f.node))
	f.board, f.told, f.aloneUntil, f.unread, f.unheard = quorum.Board{}, false, time.Time{}, nil, nil
	f.duties, f.votes = snap.Map[balancer.Target, bool]{}, snap.Map[balancer.Target, *quorum.Vote]{}
	f.pending, f.lame, f.since = map[balancer.Target]bool{}, map[balancer.Target]time.Time{}, map[balancer.Target]time.Time{}
}

// awaits reports whether some service asks for the fleet's checks, and what the fleet has found is still to be read. It is
// not waited for where services can't be read either. Nil: there is no fleet.
func (f *fleetChecks) awaits(s *store.Snapshot) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told {
		return false
	}
	for _, service := range s.Services.All() {
		if health.ByFleet(service) {
			f.need(true)
			f.told = !s.Connected
			return s.Connected
		}
	}
	return false
}

// need says whether the fleet's checks are to be followed.
func (f *fleetChecks) need(is bool) {
	if f.needed.Swap(is) == is {
		return
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// verdicts has this node check its part of what is wanted from now on, and returns what is known of all.
func (f *fleetChecks) verdicts(wanted snap.Map[balancer.Target, health.Subject], exec bool) snap.Map[balancer.Target, balancer.Verdict] {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.council.Shared()
	f.exec = exec
	mine := f.council.Assign(quorum.Round{Wanted: wanted, Board: f.board, Waiting: !f.told, Alone: f.aloneLocked(), Exec: exec})
	f.runner.Assume(f.council.Shared())
	verdicts := f.council.Judge(f.runner.Set(mine))
	f.voteLocked()
	f.recordLocked(before)
	f.need(f.council.Len() > 0)
	return verdicts
}

// aloneLocked reports whether this node can't rely on the board.
func (f *fleetChecks) aloneLocked() bool {
	return f.told && (!f.board.Connected || time.Now().Before(f.aloneUntil))
}

// run follows the fleet's checks while some service asks for them, until ctx ends.
func (f *fleetChecks) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		}
		for f.needed.Load() && ctx.Err() == nil {
			if err := f.take(ctx); err != nil {
				return err
			}
		}
	}
}

// take takes part until ctx ends or no service asks for it any more.
func (f *fleetChecks) take(ctx context.Context) error {
	board, err := etcd.NewHealthBoard(etcd.BoardOptions{Config: f.config, Log: f.log, Patience: f.patience})
	if err != nil {
		return err
	}
	writer, err := etcd.NewWriter(f.config)
	if err != nil {
		return err
	}
	defer func() { _ = writer.Close() }() // nothing is left to be done about it
	f.mu.Lock()
	f.voter, err = writer.HealthVoter(f.node, quorum.Checker{Exec: f.exec}, f.lease)
	voter := f.voter
	f.mu.Unlock()
	if err != nil {
		return err
	}
	voter.Report = f.report
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { board.Watch(ctx, f.publish) })
	running.Go(func() { voter.Run(ctx) })
	f.attend(ctx)
	cancel()
	running.Wait()
	f.mu.Lock()
	f.voter = nil
	if !f.needed.Load() {
		f.forget()
	}
	f.mu.Unlock()
	f.kick()
	return nil
}

// attend looks at first results, at checks that can't be carried out any more, and at the end of the time after an absence
// of etcd, until ctx ends or no service asks for the fleet's checks.
func (f *fleetChecks) attend(ctx context.Context) {
	look, limp := time.NewTicker(votePause), time.NewTicker(lamePause)
	defer look.Stop()
	defer limp.Stop()
	for f.needed.Load() {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-limp.C:
			f.mu.Lock()
			f.limpLocked(time.Now())
			f.mu.Unlock()
		case <-look.C:
			f.mu.Lock()
			f.voteLocked()
			over := !f.aloneUntil.IsZero() && !f.aloneLocked()
			if over {
				f.aloneUntil = time.Time{}
				f.tellLocked(false)
			}
			f.mu.Unlock()
			if over {
				f.kick()
			}
		}
	}
}

// publish takes in what is on the board.
func (f *fleetChecks) publish(b quorum.Board, err error) {
	f.mu.Lock()
	if b.Connected && f.told && !f.board.Connected {
		f.aloneUntil = time.Now().Add(f.settle)
	}
	before := f.aloneLocked()
	f.board, f.unread = b, err
	f.told = true
	if after := f.aloneLocked(); before != after {
		f.tellLocked(after)
	}
	f.mu.Unlock()
	f.kick()
}

// tellLocked tells the journal whether this node decides alone.
func (f *fleetChecks) tellLocked(alone bool) {
	e := journal.Event{Kind: journal.Health, Text: "the fleet's health checks are shared again"}
	if alone {
		e.Level, e.Text = slog.LevelWarn, "this node checks the fleet's endpoints itself"
		if f.unread != nil {
			e.Cause = f.unread.Error()
		}
	}
	f.record(e)
}
