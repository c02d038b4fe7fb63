package probe

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
)

// Options configures a Runner.
type Options struct {
	// Report receives the verdicts that changed. Changes at about the same time share a call. Run's
	// goroutine calls it, so it must not block.
	Report func([]Transition)
	// Observe, if not nil, receives each result. It is called concurrently.
	Observe func(balancer.HealthType, health.Result)
	// OnResult, if not nil, receives each result that affects a state, once for each target. It
	// must neither block nor call the Runner.
	OnResult func(TargetResult)
	// InFlight is the maximum number of concurrent checks, not counting exec checks and requested
	// checks. The default of 8192 allows as many checks per second with the default timeout of 1 s,
	// even if all of them hang.
	InFlight int
	// Programs is the maximum number of concurrent exec checks, not counting requested checks. The
	// default is 16.
	Programs int
	// Gather is how long a changed verdict waits for other changes, to be reported with them. Each
	// additional change extends the wait, up to four times Gather. The default is 50 ms.
	Gather time.Duration
	// Seed makes this node's jitter differ from other nodes' jitter.
	Seed uint64
	// Kept is the result of Runner.Keep in an earlier run.
	Kept []Kept
	// Held is the latest time at which Kept is known to have been current.
	Held time.Time
	// Check runs a check. If nil, Probe.Check is used.
	Check func(context.Context, *Probe, netip.AddrPort) health.Result
}

// TargetResult is the result of a target's check.
type TargetResult struct {
	Target balancer.Target
	// Check is the index of the check among the target's checks, and Rules are the check's rules.
	// At is the probed address, whose port may differ from the target's.
	Check int
	Rules health.Rules
	At    netip.AddrPort
	health.Result
}

// These are the defaults of Options.
const (
	defaultInFlight = 8192
	defaultPrograms = 16
	defaultGather   = 50 * time.Millisecond
)

// maxGather limits how long a report waits for more verdicts, as a multiple of Options.Gather.
const maxGather = 4

// Transition is a change to the verdict that one or more targets share.
type Transition struct {
	Targets []balancer.Target
	// Before is the previous verdict, and For is how long it lasted. For is 0 if this is unknown.
	Before balancer.Verdict
	For    time.Duration
	// State is the new state. State.Last.Text is the cause.
	State health.State
}

// Status is the state of one target.
type Status struct {
	// At is the probed address, and Health is the definition of the check. If the target has
	// several checks, At and Health belong to the check whose result is shown.
	At     netip.AddrPort
	Health *balancer.Health
	// State includes the verdict, and the time of the next check (State.Due).
	State health.State
	// Checking reports whether a check is running.
	Checking bool
	// Checks holds the states of the target's checks. It is nil unless there are several.
	Checks []Status
}

// Runner checks targets periodically. Set defines the targets, and Run checks them. All methods are
// safe for concurrent use.
//
// Its goals, and how it achieves each:
//  1. One probe for each distinct pair of address and check: targets with the same pair share an entry, even if their services
//     differ. An entry retains its state while any target uses it.
//  2. A check that hangs delays no other check: each runs in its own goroutine, and programs have their own queue.
//  3. Low cost at 10,000 targets: all share one heap and one timer, checks due within a tick start together, and a result costs one
//     push onto the heap. A result wakes the loop only if the loop must act earlier.
//  4. Targets that fail together are detected together: a failure brings forward the checks of targets that may share its cause (see
//     alarmLocked).
//  5. Changes at about the same time share a report: see Options.Gather.
type Runner struct {
	o      Options
	wake   wake.Signal // has a token if the loop must check the schedule again
	system systemStore
	manual chan struct{} // holds a token for each requested check that is running

	mu       sync.Mutex // guards the fields below
	ctx      context.Context
	running  sync.WaitGroup
	wanted   snap.Map[balancer.Target, health.Subject]
	verdicts snap.Map[balancer.Target, balancer.Verdict]
	assumed  snap.Map[balancer.Target, balancer.Verdict] // verdicts from other nodes
	kept     map[netip.AddrPort][]Kept                   // states of an earlier run
	entries  map[entryKey]*entry
	targets  map[balancer.Target]*watch
	probes   map[string]*sharedProbe
	hosts    map[netip.Addr]*circle // the entries of each address
	due      schedule
	sleeps   time.Time // when the loop will wake up by itself
	network  lane
	programs lane
	changes  []Transition
	reportAt time.Time // when the next report is due, or zero if there is nothing to report
	reportBy time.Time // the latest time for reportAt
}

// NewRunner returns a runner without targets.
func NewRunner(o Options) *Runner {
	o.InFlight = cmp.Or(o.InFlight, defaultInFlight)
	o.Programs = cmp.Or(o.Programs, defaultPrograms)
	o.Gather = cmp.Or(o.Gather, defaultGather)
	if o.Check == nil {
		o.Check = func(ctx context.Context, p *Probe, at netip.AddrPort) health.Result { return p.Check(ctx, at) }
	}
	r := &Runner{
		o: o, wake: wake.New(), manual: make(chan struct{}, maxManual), kept: map[netip.AddrPort][]Kept{}, entries: map[entryKey]*entry{},
		targets: map[balancer.Target]*watch{}, probes: map[string]*sharedProbe{}, hosts: map[netip.Addr]*circle{},
		network: lane{max: o.InFlight}, programs: lane{max: o.Programs},
	}
	for _, k := range o.Kept {
		r.kept[k.At] = append(r.kept[k.At], k)
	}
	return r
}

// tick is how long a due check may be delayed. Checks that become due within a tick start together.
const tick = 2 * time.Millisecond

// Run checks the targets until ctx is canceled. It returns after the last running check has
// finished.
func (r *Runner) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	for ctx.Err() == nil {
		if report := r.startDue(time.Now()); report != nil {
			r.o.Report(report)
			continue
		}
		r.mu.Lock()
		wait := time.Until(r.sleeps)
		r.mu.Unlock()
		timer.Reset(max(wait, tick))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.wake:
		}
	}
	r.mu.Lock()
	r.ctx = nil // no more checks may start
	r.mu.Unlock()
	r.running.Wait()
}

// startDue starts the checks that are due, sets r.sleeps, and returns the changes that must be
// reported now.
func (r *Runner) startDue(now time.Time) []Transition {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.due) > 0 && !r.due[0].state.Due.After(now) {
		e := heap.Pop(&r.due).(*entry)
		e.lane.enqueue(e, now)
	}
	r.startLocked(&r.network)
	r.startLocked(&r.programs)
	if !r.reportAt.IsZero() && !r.reportAt.After(now) {
		changes := r.changes
		r.changes, r.reportAt = nil, time.Time{}
		return changes
	}
	r.sleeps = now.Add(time.Hour)
	if len(r.due) > 0 {
		r.sleeps = r.due[0].state.Due
	}
	if !r.reportAt.IsZero() && r.reportAt.Before(r.sleeps) {
		r.sleeps = r.reportAt
	}
	return nil
}

// startLocked starts the checks that wait in a lane, as far as the lane has room.
func (r *Runner) startLocked(l *lane) {
	for len(l.waiting) > 0 && l.running < l.max && r.ctx != nil {
		e := l.waiting[0]
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
		if len(l.waiting) == 0 {
			l.waiting = nil
		}
		if len(e.targets) == 0 {
			continue // the entry was removed while it waited
		}
		l.noteWait(e, time.Now())
		l.running++
		e.checking = true
		ctx := r.ctx
		r.running.Go(func() { r.check(ctx, e) })
	}
}

func (r *Runner) check(ctx context.Context, e *entry) {
	res := r.o.Check(ctx, e.probe, e.key.at)
	if r.o.Observe != nil && ctx.Err() == nil {
		r.o.Observe(e.probe.health.Type, res)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.checking = false
	e.lane.running--
	r.startLocked(e.lane)
	if ctx.Err() != nil || len(e.targets) == 0 {
		return
	}
	before := e.state
	e.state = before.After(e.rules, res)
	r.alarmLocked(e, before)
	heap.Push(&r.due, e)
	if r.o.OnResult != nil {
		for _, t := range e.targets {
			r.o.OnResult(TargetResult{t, slices.Index(r.targets[t].checks, e), e.rules, e.key.at, res})
		}
	}
	if e.state.Verdict != before.Verdict {
		r.changeLocked(e, before)
	}
	if first := r.due[0].state.Due; first.Before(r.sleeps) {
		r.sleeps = first
		r.wake.Send()
	}
}

// changeLocked adds the change of e's verdict to the next report. before is e's previous state.
func (r *Runner) changeLocked(e *entry, before health.State) {
	var sharing []balancer.Target // targets without another check
	for _, t := range slices.SortedFunc(slices.Values(e.targets), balancer.Target.Compare) {
		if w := r.targets[t]; len(w.checks) > 1 {
			r.combineLocked(t, w, e, before)
			continue
		}
		sharing = append(sharing, t)
		r.verdicts = r.verdicts.Set(t, e.state.Verdict)
	}
	if len(sharing) > 0 {
		r.changes = append(r.changes, newTransition(sharing, before, e.state))
		r.reportSoonLocked()
	}
}

// Set replaces the targets with wanted, and returns their verdicts. A target with an unchanged
// check retains its state, even while its verdict is changing. A target with a changed check
// retains its verdict. The cost grows with the number of changed targets.
func (r *Runner) Set(wanted snap.Map[balancer.Target, health.Subject]) snap.Map[balancer.Target, balancer.Verdict] {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := batch{now: time.Now(), definitions: map[definitionOf]string{}}
	for t, change := range snap.Diff(r.wanted, wanted) {
		b.moves = append(b.moves, move{t, change.New, change.HasNew})
	}
	r.wanted = wanted
	for _, m := range b.moves {
		r.moveLocked(&b, m)
	}
	for _, l := range b.leaving {
		r.leaveLocked(l.target, l.entry)
	}
	r.wake.Send()
	return r.verdicts
}

// Assume tells the Runner which verdicts other nodes have reached. A target that is added later
// starts with their verdict, so its first result alone does not determine the verdict.
func (r *Runner) Assume(verdicts snap.Map[balancer.Target, balancer.Verdict]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.assumed = verdicts
}

// Verdicts returns the current verdicts of all targets.
func (r *Runner) Verdicts() snap.Map[balancer.Target, balancer.Verdict] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verdicts
}

// Status returns the state of t. It returns false if t is not a target.
func (r *Runner) Status(t balancer.Target) (Status, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.targets[t]
	if w == nil {
		return Status{}, false
	}
	return w.status(), true
}

// Hint reports that the state of targets may have changed. They are checked as soon as the fast
// interval since their latest check has passed. Unknown targets are ignored.
func (r *Runner) Hint(targets ...balancer.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, t := range targets {
		if w := r.targets[t]; w != nil {
			for _, e := range w.checks {
				r.hintLocked(e, now)
			}
		}
	}
}

func (r *Runner) hintLocked(e *entry, now time.Time) {
	if e.place < 0 {
		return // the entry is being checked, or waits in its lane
	}
	e.state = e.state.Expedite(e.rules, now)
	heap.Fix(&r.due, e.place)
	if e.state.Due.Before(r.sleeps) {
		r.sleeps = e.state.Due
		r.wake.Send()
	}
}

// Kept is the saved state of one probe.
type Kept struct {
	At netip.AddrPort `json:"at"`
	// Check is a fingerprint of the definition, and Services holds the services that used it.
	Check    string          `json:"check"`
	Services []balancer.Name `json:"services"`
	health.Saved
}

// keptOf returns the saved state of the check that key identifies or, if missing, the saved state
// of another check with the same address and service.
func (r *Runner) keptOf(key entryKey, service balancer.Name) (health.Saved, bool) {
	all, check := r.kept[key.at], digest(key.definition)
	i := slices.IndexFunc(all, func(k Kept) bool { return k.Check == check })
	if i < 0 {
		i = slices.IndexFunc(all, func(k Kept) bool { return slices.Contains(k.Services, service) })
	}
	if i < 0 {
		return health.Saved{}, false
	}
	return all[i].Saved, true
}

// Keep returns the states for the next run's Options.Kept, sorted by address.
func (r *Runner) Keep() []Kept {
	r.mu.Lock()
	var kept []Kept
	for key, e := range r.entries {
		if saved, ok := e.state.Save(); ok {
			kept = append(kept, Kept{key.at, r.probes[key.definition].digest, e.services(), saved})
		}
	}
	r.mu.Unlock()
	slices.SortFunc(kept, func(a, b Kept) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Check, b.Check)) })
	return kept
}

// digest returns a fingerprint of a definition. The definition itself is never written to disk,
// because it may contain secrets.
func digest(definition string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(definition))
	return fmt.Sprintf("%016x", h.Sum64())
}
