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

// Checks is a node's part in the fleet's checks. While no service needs the fleet's checks, it has
// no connection to etcd, and no lease or key there. A nil *Checks represents a node without a
// fleet, and all methods except Verdicts accept it. Its methods are safe for concurrent use.
type Checks struct {
	o           Options
	coordinator *quorum.Coordinator
	wake        wake.Signal // sent when needed changes
	needed      atomic.Bool // set if a service needs the fleet's checks

	mu sync.Mutex // guards the fields below, and the coordinator
	// board is the last content of the board, or empty. boardKnown reports whether the board was
	// read, or whether etcd had enough time to provide it.
	board      quorum.Board
	boardKnown bool
	// read is the time when the board was last read, or zero.
	read time.Time
	// aloneUntil is the time until which this node decides alone after an outage, or zero. alone is
	// the time at which it started to decide alone according to the history, or zero.
	aloneUntil, alone time.Time
	exec              bool // this node may run programs
	// votes holds this node's verdicts on the targets that it checks for the fleet. voter writes
	// these votes, or is nil if the fleet is not followed. pending holds the targets whose votes
	// must still be determined.
	votes       snap.Map[balancer.Target, *quorum.Vote]
	voter       *fleet.HealthVoter
	assignments snap.Map[balancer.Target, bool]
	pending     map[balancer.Target]bool
	// cannotRun maps the targets whose checks can't run to the time when they stopped running.
	cannotRun map[balancer.Target]time.Time
	wanted    snap.Map[balancer.Target, health.Subject]
	dissent   dissent
	// unread is the reason why the board can't be read. unpublished is the reason why this node's
	// votes can't be written, and silent is when writing them started to fail.
	unread, unpublished error
	silent              time.Time
}

// Options configures Checks.
type Options struct {
	// Config is etcd's client configuration, and Node is this node's name.
	Config client.Config
	Node   string
	// Runner runs this node's checks. It reports to Vote.
	Runner *probe.Runner
	Log    *slog.Logger
	// Record receives events, and must not block.
	Record func(events.Event)
	// Kick makes the model call Verdicts again.
	Kick func()
	// Lease is how long this node's votes stay valid after vipd exits.
	Lease time.Duration
	// Patience limits how long etcd may be unavailable before this node decides alone. Zero means
	// the default of etcd.BoardOptions.
	Patience time.Duration
	// Settle is how long the node continues to decide alone after etcd is available again. During
	// that time, other nodes vote, and the leases of dead nodes expire. Zero means Lease.
	Settle time.Duration
	// Former is the lease of the votes that the previous run could not revoke, or 0.
	Former int64
	// Keep saves the ID of a lease, which the next run passes as Former. It may be nil.
	Keep func(lease int64)
}

// votePause is the interval at which pending targets are examined. runnablePause is the interval at
// which checks that can't run are examined.
const (
	votePause     = 250 * time.Millisecond
	runnablePause = time.Second
)

// New returns a node's part in the fleet's checks. It does nothing before Verdicts and Run are
// called. New returns an error if o.Node is not a valid name.
func New(o Options) (*Checks, error) {
	if err := schema.CheckNode(o.Node); err != nil {
		return nil, err
	}
	o.Settle = cmp.Or(o.Settle, o.Lease)
	f := &Checks{o: o, wake: wake.New(), coordinator: quorum.New(balancer.NodeName(o.Node))}
	f.forget()
	return f, nil
}

// forget drops everything that is known about the fleet. The coordinator keeps the verdicts of this
// node's own checks, but has no targets of the fleet. These are the initial verdicts if a service
// needs the fleet's checks again.
func (f *Checks) forget() {
	f.board = quorum.Board{}
	f.boardKnown = false
	f.read = time.Time{}
	f.aloneUntil = time.Time{}
	f.alone = time.Time{}
	f.unread = nil
	f.unpublished = nil
	f.assignments, f.votes = snap.Map[balancer.Target, bool]{}, snap.Map[balancer.Target, *quorum.Vote]{}
	f.pending, f.cannotRun = map[balancer.Target]bool{}, map[balancer.Target]time.Time{}
}

// Awaits reports whether a service needs the fleet's checks and the board has not been read yet. It
// returns false if the store is not connected, or if f is nil.
func (f *Checks) Awaits(s *store.Snapshot) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.boardKnown {
		return false
	}
	for _, service := range s.Services.All() {
		if health.ByFleet(service) {
			f.need(true)
			f.boardKnown = !s.Connected
			return s.Connected
		}
	}
	return false
}

// need sets whether a service needs the fleet's checks, and wakes Run if that has changed.
func (f *Checks) need(needed bool) {
	if f.needed.Swap(needed) == needed {
		return
	}
	f.wake.Send()
}

// Verdicts starts this node's part of the wanted checks, and returns the verdicts on all targets.
func (f *Checks) Verdicts(wanted snap.Map[balancer.Target, health.Subject], exec bool) snap.Map[balancer.Target, balancer.Verdict] {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, shared := f.coordinator.Verdicts(), f.coordinator.Shared()
	f.exec, f.wanted = exec, wanted
	mine := f.coordinator.Assign(quorum.Round{
		Wanted: wanted, Board: f.board, Waiting: !f.boardKnown, Alone: f.aloneLocked(), Exec: exec, Now: time.Now(), VoteDelay: f.o.Lease,
	})
	f.o.Runner.Assume(joined(shared, f.coordinator.Shared()))
	verdicts := f.coordinator.Judge(f.o.Runner.Set(mine))
	f.voteLocked()
	f.recordLocked(before)
	f.need(f.coordinator.Len() > 0)
	return verdicts
}

// joined returns the verdicts in after. Targets that are missing from after keep their verdicts
// from before, because such a target no longer belongs to the fleet, and this node's own checks of
// it start with that verdict.
func joined(before, after snap.Map[balancer.Target, balancer.Verdict]) snap.Map[balancer.Target, balancer.Verdict] {
	all := after
	for t, c := range snap.Diff(before, after) {
		if !c.HasNew {
			all = all.Set(t, c.Old)
		}
	}
	return all
}

// aloneLocked reports whether this node decides alone because it can't rely on the board.
func (f *Checks) aloneLocked() bool {
	return f.boardKnown && (!f.board.Connected || time.Now().Before(f.aloneUntil))
}

// Run follows the fleet's checks while a service needs them, until ctx is done. It returns only
// errors that a retry can't fix.
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
			if err := f.follow(ctx); err != nil {
				return err
			}
		}
	}
}

// follow shares checks with the fleet until ctx is done or no service needs the fleet's checks.
func (f *Checks) follow(ctx context.Context) error {
	board, err := fleet.NewHealthBoard(fleet.BoardOptions{Config: f.o.Config, Log: f.o.Log, Patience: f.o.Patience})
	if err != nil {
		return err
	}
	writer, err := etcd.NewStore(f.o.Config)
	if err != nil {
		return err
	}
	defer func() { _ = writer.Close() }() // a failure does not matter here
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
	running.Go(func() { f.runVoter(ctx, voter) })
	f.examineLoop(ctx)
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

// examineLoop repeatedly examines pending targets and checks that can't run, and whether Settle is
// over. It returns when ctx is done or no service needs the fleet's checks.
func (f *Checks) examineLoop(ctx context.Context) {
	look, runnable := time.NewTicker(votePause), time.NewTicker(runnablePause)
	defer look.Stop()
	defer runnable.Stop()
	for f.needed.Load() {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-runnable.C:
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
				f.recordAloneLocked()
			}
			over = over || f.coordinator.Overdue(time.Now())
			f.mu.Unlock()
			if over {
				f.o.Kick()
			}
		}
	}
}

// runVoter runs the voter while the board can be read. A node that can't read the board does not
// know its targets, and other nodes would wait for its votes in vain. An outage shorter than the
// lease has no effect.
func (f *Checks) runVoter(ctx context.Context, voter *fleet.HealthVoter) {
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

// begin starts the function run in a goroutine. The function end cancels run and waits for it. It
// may be called more than once.
func begin(ctx context.Context, run func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	return func() { cancel(); running.Wait() }
}

// reads reports whether the board can be read, or was last read less than a lease ago.
func (f *Checks) reads(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.board.Connected || !f.read.IsZero() && now.Sub(f.read) < f.o.Lease
}

func (f *Checks) publish(b quorum.Board, err error) {
	f.mu.Lock()
	if now := time.Now(); b.Connected || f.board.Connected {
		f.read = now
		if f.boardKnown && !f.board.Connected {
			f.aloneUntil = now.Add(f.o.Settle)
		}
	}
	f.board = b
	f.unread = err
	f.boardKnown = true
	f.recordAloneLocked()
	if f.voter != nil {
		f.voter.SetBoard(b)
	}
	f.mu.Unlock()
	f.o.Kick()
}

// recordAloneLocked adds an event to the history when this node starts or stops deciding alone.
func (f *Checks) recordAloneLocked() {
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
