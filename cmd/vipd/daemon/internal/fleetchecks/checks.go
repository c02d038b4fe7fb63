package fleetchecks

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/dataplane/probe"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
)

// Checks is a node's part. While no service asks for such checks, there is no connection, no lease and no key. A nil *Checks
// is that of a node that is in no fleet, which all but Verdicts know. All methods may be called by any goroutine.
type Checks struct {
	o           Options
	coordinator *quorum.Coordinator
	wake        wake.Signal // holds a token: there may be something to follow
	needed      atomic.Bool // some service asks for it

	mu sync.Mutex // guards the rest, and the coordinator
	// board is what was last on it, or nothing. told: it was read, or etcd was given time enough for that.
	board quorum.Board
	told  bool
	// read is when the board could be read last; zero means never.
	read time.Time
	// aloneUntil is when this node may rely on the board again after it was away; zero means it may. alone is since when the
	// history has that this node decides alone; zero means it does not.
	aloneUntil, alone time.Time
	exec              bool // this node may run programs
	// votes are what this node has found of the targets that it checks for the fleet, and voter writes them; nil means no fleet.
	// pending are targets that are still to be looked at.
	votes       snap.Map[balancer.Target, *quorum.Vote]
	voter       *fleet.HealthVoter
	assignments snap.Map[balancer.Target, bool]
	pending     map[balancer.Target]bool
	// cannotRun is when checks that ran before stopped running.
	cannotRun map[balancer.Target]time.Time
	wanted    snap.Map[balancer.Target, health.Subject]
	dissent   dissent
	// unread and unheard are why the board is not read, and why the votes of this node are not, silent since when that is.
	unread, unheard error
	silent          time.Time
}

// Options are what a node's part is made of.
type Options struct {
	// Config is that of etcd, Node this node's name.
	Config client.Config
	Node   string
	// Runner gets the checks that are this node's. It reports to Vote.
	Runner *probe.Runner
	Log    *slog.Logger
	// Record is told what begins or ends, and must not block.
	Record func(events.Event)
	// Kick has Verdicts be called again.
	Kick func()
	// Lease is how long after this node's end its votes count.
	Lease time.Duration
	// Patience is how long etcd may be away before this node decides alone. Default: as etcd.BoardOptions has it.
	Patience time.Duration
	// Settle is how long it goes on so after etcd is back: in that time those that checked meanwhile say what they have found,
	// and what those said who are gone ends with their leases. Default: Lease.
	Settle time.Duration
	// Former is the lease under which an earlier run has said what it has found, and was not able to take that back; 0 means none.
	Former int64
	// Keep, unless nil, keeps the number of a lease, which is the next run's Former.
	Keep func(lease int64)
}

// votePause is the time between two looks at first results, lamePause that between two looks whether checks can still be
// run.
const (
	votePause = 250 * time.Millisecond
	lamePause = time.Second
)

// New returns the part of a node in a fleet's checks, which does nothing before Verdicts and Run. An error says that the node
// can't have that name.
func New(o Options) (*Checks, error) {
	if err := schema.CheckNode(o.Node); err != nil {
		return nil, err
	}
	o.Settle = cmp.Or(o.Settle, o.Lease)
	f := &Checks{o: o, wake: wake.New(), coordinator: quorum.New(balancer.NodeName(o.Node))}
	f.forget()
	return f, nil
}

// forget begins anew: nothing is known of the fleet. The coordinator stays: it has no target of the fleet's then, and knows what
// this node's own checks have found, from which a service goes on that asks for the fleet's again.
func (f *Checks) forget() {
	f.board, f.told, f.read, f.aloneUntil, f.alone, f.unread, f.unheard = quorum.Board{}, false, time.Time{}, time.Time{}, time.Time{}, nil, nil
	f.assignments, f.votes = snap.Map[balancer.Target, bool]{}, snap.Map[balancer.Target, *quorum.Vote]{}
	f.pending, f.cannotRun = map[balancer.Target]bool{}, map[balancer.Target]time.Time{}
}

// Awaits reports whether some service asks for the fleet's checks, and what the fleet has found is still to be read. It is
// not waited for where services can't be read either. Nil: there is no fleet.
func (f *Checks) Awaits(s *store.Snapshot) bool {
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
func (f *Checks) need(is bool) {
	if f.needed.Swap(is) == is {
		return
	}
	f.wake.Send()
}

// Verdicts has this node check its part of what is wanted from now on, and returns what is known of all.
func (f *Checks) Verdicts(wanted snap.Map[balancer.Target, health.Subject], exec bool) snap.Map[balancer.Target, balancer.Verdict] {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, shared := f.coordinator.Verdicts(), f.coordinator.Shared()
	f.exec, f.wanted = exec, wanted
	mine := f.coordinator.Assign(quorum.Round{
		Wanted: wanted, Board: f.board, Waiting: !f.told, Alone: f.aloneLocked(), Exec: exec, Now: time.Now(), VoteDelay: f.o.Lease,
	})
	f.o.Runner.Assume(joined(shared, f.coordinator.Shared()))
	verdicts := f.coordinator.Judge(f.o.Runner.Set(mine))
	f.voteLocked()
	f.recordLocked(before)
	f.need(f.coordinator.Len() > 0)
	return verdicts
}

// joined are the verdicts after a change, with those that are not the fleet's any more: this node's own checks go on from
// there too.
func joined(before, after snap.Map[balancer.Target, balancer.Verdict]) snap.Map[balancer.Target, balancer.Verdict] {
	all := after
	for t, c := range snap.Diff(before, after) {
		if !c.HasNew {
			all = all.Set(t, c.Old)
		}
	}
	return all
}

// aloneLocked reports whether this node can't rely on the board.
func (f *Checks) aloneLocked() bool {
	return f.told && (!f.board.Connected || time.Now().Before(f.aloneUntil))
}

// Run follows the fleet's checks while some service asks for them, until ctx ends. It returns an error that no later try mends.
func (f *Checks) Run(ctx context.Context) error {
	if f == nil {
		return nil
	}
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
func (f *Checks) take(ctx context.Context) error {
	board, err := fleet.NewHealthBoard(fleet.BoardOptions{Config: f.o.Config, Log: f.o.Log, Patience: f.o.Patience})
	if err != nil {
		return err
	}
	writer, err := etcd.NewStore(f.o.Config)
	if err != nil {
		return err
	}
	defer func() { _ = writer.Close() }() // nothing is left to be done about it
	f.mu.Lock()
	f.voter, err = writer.HealthVoter(f.o.Node, quorum.Checker{Exec: f.exec}, f.o.Lease)
	voter := f.voter
	f.mu.Unlock()
	if err != nil {
		return err
	}
	voter.Report, voter.Former = f.report, f.o.Former
	voter.Granted = func(lease int64) {
		f.o.Former = lease
		if f.o.Keep != nil {
			f.o.Keep(lease)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { board.Watch(ctx, f.publish) })
	running.Go(func() { f.speak(ctx, voter) })
	f.attend(ctx)
	cancel()
	running.Wait()
	f.mu.Lock()
	f.voter = nil
	if !f.needed.Load() {
		f.forget()
	}
	f.mu.Unlock()
	f.o.Kick()
	return nil
}

// attend looks at first results, at checks that can't be run any more, and at the end of the time after an absence
// of etcd, until ctx ends or no service asks for the fleet's checks.
func (f *Checks) attend(ctx context.Context) {
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
			f.retractVotesLocked(time.Now())
			f.dissentLocked(time.Now())
			f.mu.Unlock()
		case <-look.C:
			f.mu.Lock()
			f.voteLocked()
			over := !f.aloneUntil.IsZero() && !f.aloneLocked()
			if over {
				f.aloneUntil = time.Time{}
				f.tellLocked()
			}
			over = over || f.coordinator.Overdue(time.Now())
			f.mu.Unlock()
			if over {
				f.o.Kick()
			}
		}
	}
}

// speak has the voter run while the board can be read: a node that does not see what others say does not know what it has
// to check, and would be waited for in vain. An absence that is no longer than the lease makes no difference.
func (f *Checks) speak(ctx context.Context, voter *fleet.HealthVoter) {
	look := time.NewTicker(votePause)
	defer look.Stop()
	end := func() {}
	defer func() { end() }()
	for runs := false; ; {
		if reads := f.reads(time.Now()); reads != runs {
			end()
			if runs = reads; runs {
				end = begin(ctx, voter.Run)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// begin runs something until ctx, or the function that it returns, ends it, which may be called twice.
func begin(ctx context.Context, run func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() { cancel(); running.Wait() }
}

// reads reports whether the board can be read, or could a moment ago.
func (f *Checks) reads(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.board.Connected || !f.read.IsZero() && now.Sub(f.read) < f.o.Lease
}

// publish takes in what is on the board.
func (f *Checks) publish(b quorum.Board, err error) {
	f.mu.Lock()
	if now := time.Now(); b.Connected || f.board.Connected {
		f.read = now
		if f.told && !f.board.Connected {
			f.aloneUntil = now.Add(f.o.Settle)
		}
	}
	f.board, f.unread, f.told = b, err, true
	f.tellLocked()
	if f.voter != nil {
		f.voter.SetBoard(b)
	}
	f.mu.Unlock()
	f.o.Kick()
}

// tellLocked tells the history when this node begins to decide alone, and when that is over.
func (f *Checks) tellLocked() {
	now := time.Now()
	switch alone := f.aloneLocked(); {
	case alone && f.alone.IsZero():
		e := events.Event{At: now, Kind: events.Health, Level: slog.LevelWarn, Text: "this node checks the fleet's endpoints itself", Cause: "no connection to etcd"}
		if f.unread != nil {
			e.Cause = f.unread.Error()
		}
		f.alone = now
		f.o.Record(e)
	case !alone && !f.alone.IsZero():
		f.o.Record(events.Event{At: now, Kind: events.Health, Text: "the fleet's health checks are shared again", Was: "alone", Lasted: now.Sub(f.alone)})
		f.alone = time.Time{}
	}
}
