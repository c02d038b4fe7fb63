package probe

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
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

// Options are what a Runner is made from.
type Options struct {
	// Report is told the verdicts that changed, many at once where they changed at about the same time. It is called by
	// one goroutine, which does nothing else meanwhile: it must not block.
	Report func([]Change)
	// Observe, unless nil, is told each result, by many goroutines.
	Observe func(balancer.HealthType, health.Result)
	// Heard, unless nil, is told each result that counts, once for each target, with what was probed. It must not block,
	// nor call the Runner.
	Heard func(t balancer.Target, at netip.AddrPort, res health.Result)
	// InFlight bounds the checks under way, exec checks and those that Exchange does aside. Default 8192, which with the
	// default timeout of 1 s is as many checks a second even if all of them hang.
	InFlight int
	// Programs bounds the exec checks under way, those that Exchange does aside. Default 16.
	Programs int
	// Gather is how long a changed verdict waits for others to be reported along; while others come, up to four times that.
	// Default 50ms.
	Gather time.Duration
	// Seed makes this node's jitter differ from other nodes'.
	Seed uint64
	// Kept is what Runner.Keep of an earlier run returned.
	Kept []Kept
	// Held is until when that was so, at least.
	Held time.Time
	// Check does one check. Nil: Probe.Check.
	Check func(context.Context, *Probe, netip.AddrPort) health.Result
}

// The defaults of Options.
const (
	defaultInFlight = 8192
	defaultPrograms = 16
	defaultGather   = 50 * time.Millisecond
)

// mostGather is how many times as long as for one verdict a report waits for many.
const mostGather = 4

// Change is a verdict that changed.
type Change struct {
	// Targets are those that it counts for, in order.
	Targets []balancer.Target
	// Before is the verdict that ended, and For how long it lasted; 0 where it was unknown.
	Before balancer.Verdict
	For    time.Duration
	// State is what is known now; State.Last.Text is the cause.
	State health.State
}

// Status is what is known of one target.
type Status struct {
	// At is what is probed.
	At netip.AddrPort
	// State is what is known of it; State.Due is when it is checked next.
	State health.State
	// Checking: a check is under way.
	Checking bool
}

// Runner checks targets over and over. Set says which; Run does it. All methods may be called by any goroutine.
//
// Goals, and how each is met:
//  1. One probe for each distinct (address, check): targets share entries, found by what they ask for, not by whose they
//     are. Entries keep their state as long as any target has them.
//  2. A check that hangs delays no other: each runs in its own goroutine, and programs have their own queue.
//  3. Cheap at 10,000 targets: one heap and one timer for all; what is due within a tick begins together; a result costs
//     one push, and wakes the loop only if something has changed.
//  4. Targets that fail together are found out together: a failure has those checked that may have failed with it (see
//     alarmLocked).
//  5. One report for what changes together: see Options.Gather.
type Runner struct {
	o      Options
	wake   wake.Signal // holds one token: look again
	system systemStore
	byHand chan struct{} // holds a token for each check that a user asked for

	mu       sync.Mutex // guards the rest
	ctx      context.Context
	running  sync.WaitGroup
	wanted   snap.Map[balancer.Target, health.Subject]
	verdicts snap.Map[balancer.Target, balancer.Verdict]
	assumed  snap.Map[balancer.Target, balancer.Verdict] // what others have found
	kept     map[netip.AddrPort][]Kept                   // of an earlier run
	entries  map[entryKey]*entry
	targets  map[balancer.Target]*entry
	probes   map[string]*sharedProbe
	hosts    map[netip.Addr]*circle // of the entries at each address
	due      schedule
	sleeps   time.Time // until when the loop sleeps
	network  lane
	programs lane
	changes  []Change
	reportAt time.Time // zero means there is nothing to report
	reportBy time.Time // how far it may be put off
}

// NewRunner returns a runner that checks nothing yet.
func NewRunner(o Options) *Runner {
	o.InFlight = cmp.Or(o.InFlight, defaultInFlight)
	o.Programs = cmp.Or(o.Programs, defaultPrograms)
	o.Gather = cmp.Or(o.Gather, defaultGather)
	if o.Check == nil {
		o.Check = func(ctx context.Context, p *Probe, at netip.AddrPort) health.Result { return p.Check(ctx, at) }
	}
	r := &Runner{
		o: o, wake: wake.New(), byHand: make(chan struct{}, mostByHand), kept: map[netip.AddrPort][]Kept{}, entries: map[entryKey]*entry{},
		targets: map[balancer.Target]*entry{}, probes: map[string]*sharedProbe{}, hosts: map[netip.Addr]*circle{},
		network: lane{most: o.InFlight}, programs: lane{most: o.Programs},
	}
	for _, k := range o.Kept {
		r.kept[k.At] = append(r.kept[k.At], k)
	}
	return r
}

// tick is how much later than due a check may begin: those due within it begin together.
const tick = 2 * time.Millisecond

// Run checks until ctx ends, and returns when the last check is over.
func (r *Runner) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	for ctx.Err() == nil {
		if report := r.turn(time.Now()); report != nil {
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
	r.ctx = nil // nothing begins any more
	r.mu.Unlock()
	r.running.Wait()
}

// turn begins what is due, says until when there is nothing to do, and returns what is to be reported.
func (r *Runner) turn(now time.Time) []Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.due) > 0 && !r.due[0].state.Due.After(now) {
		e := heap.Pop(&r.due).(*entry)
		e.lane.enqueue(e, now)
	}
	r.beginLocked(&r.network)
	r.beginLocked(&r.programs)
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

// beginLocked begins as many of those that wait in the lane as there is room for.
func (r *Runner) beginLocked(l *lane) {
	for len(l.waiting) > 0 && l.running < l.most && r.ctx != nil {
		e := l.waiting[0]
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
		if len(l.waiting) == 0 {
			l.waiting = nil
		}
		if len(e.targets) == 0 {
			continue // it is not wanted any more
		}
		l.noteWait(e, time.Now())
		l.running++
		e.checking = true
		ctx := r.ctx
		r.running.Go(func() { r.check(ctx, e) })
	}
}

// check does one check of e and takes its result.
func (r *Runner) check(ctx context.Context, e *entry) {
	res := r.o.Check(ctx, e.probe, e.key.at)
	if r.o.Observe != nil && ctx.Err() == nil {
		r.o.Observe(e.probe.health.Type, res)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.checking = false
	e.lane.running--
	r.beginLocked(e.lane)
	if ctx.Err() != nil || len(e.targets) == 0 {
		return
	}
	before := e.state
	e.state = before.After(e.rules, res)
	r.alarmLocked(e, before)
	heap.Push(&r.due, e)
	if r.o.Heard != nil {
		for _, t := range e.targets {
			r.o.Heard(t, e.key.at, res)
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

// changeLocked notes that the verdict of e is another one, to be reported.
func (r *Runner) changeLocked(e *entry, before health.State) {
	c := Change{
		Targets: slices.SortedFunc(slices.Values(e.targets), balancer.Target.Compare), Before: before.Verdict, State: e.state,
	}
	if !before.Since.IsZero() {
		c.For = e.state.Since.Sub(before.Since)
	}
	for _, t := range e.targets {
		r.verdicts = r.verdicts.Set(t, e.state.Verdict)
	}
	r.changes = append(r.changes, c)
	now := time.Now()
	if r.reportAt.IsZero() {
		r.reportBy = now.Add(mostGather * r.o.Gather)
	}
	r.reportAt = now.Add(r.o.Gather)
	if r.reportBy.Before(r.reportAt) {
		r.reportAt = r.reportBy
	}
	if r.reportAt.Before(r.sleeps) {
		r.sleeps = r.reportAt
		r.wake.Send()
	}
}

// Set makes wanted what is checked, and returns the verdicts there are of it. Targets that ask for the same as before
// keep their state, also in the middle of a turn; one that asks for something else begins it with the verdict that it
// had. The cost grows with the difference.
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

// Assume says what others have found of targets. Those that begin to be checked from now on go on from there, so that
// their first result does not decide alone.
func (r *Runner) Assume(verdicts snap.Map[balancer.Target, balancer.Verdict]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.assumed = verdicts
}

// Verdicts returns the verdicts that there are now, of those targets that are checked.
func (r *Runner) Verdicts() snap.Map[balancer.Target, balancer.Verdict] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verdicts
}

// Status returns what is known of a target, and whether it is checked at all.
func (r *Runner) Status(t balancer.Target) (Status, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.targets[t]
	if e == nil {
		return Status{}, false
	}
	return Status{e.key.at, e.state, e.checking}, true
}

// Hint says that something else may be wrong with the targets, or right again: they are checked at once, or as soon as
// the fast interval since their latest check is over. Targets that are not checked are passed over.
func (r *Runner) Hint(targets ...balancer.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, t := range targets {
		e := r.targets[t]
		if e == nil || e.place < 0 {
			continue // it is being checked, or about to be
		}
		e.state = e.state.Sooner(e.rules, now)
		heap.Fix(&r.due, e.place)
		if e.state.Due.Before(r.sleeps) {
			r.sleeps = e.state.Due
			r.wake.Send()
		}
	}
}

// ErrUnchecked is what Now returns for a target that is not among those that are checked.
var ErrUnchecked = errors.New("it has no health check")

// Now checks the target once, apart from the schedule, and returns what Exchange does. The result does not count for the
// verdict.
func (r *Runner) Now(ctx context.Context, t balancer.Target) (health.Result, string, error) {
	r.mu.Lock()
	e := r.targets[t]
	r.mu.Unlock()
	if e == nil {
		return health.Result{}, "", fmt.Errorf("checking %s: %w", t, ErrUnchecked)
	}
	return r.exchange(ctx, e.probe, e.key.at)
}

// mostByHand bounds the checks under way that users asked for. They have their own queue: who asks over and over
// must neither start any number of programs, nor keep those of the schedule waiting.
const mostByHand = 4

// Exchange checks a subject once and returns what Probe.Exchange does, as soon as few others do it. The error is that of ctx,
// which ended before.
func (r *Runner) Exchange(ctx context.Context, s health.Subject) (health.Result, string, error) {
	return r.exchange(ctx, newProbe(s, &r.system), s.At)
}

func (r *Runner) exchange(ctx context.Context, p *Probe, at netip.AddrPort) (health.Result, string, error) {
	select {
	case r.byHand <- struct{}{}:
	case <-ctx.Done():
		return health.Result{}, "", fmt.Errorf("waiting for other checks that were asked for: %w", ctx.Err())
	}
	defer func() { <-r.byHand }()
	res, exchange := p.Exchange(ctx, at)
	return res, exchange, nil
}

// Kept is what is kept of one probe over a restart.
type Kept struct {
	At netip.AddrPort `json:"at"`
	// Check tells the check from others of the same address, and Services say whose it was.
	Check    string          `json:"check"`
	Services []balancer.Name `json:"services"`
	health.Saved
}

// keptOf returns what was kept of the check at key, else of another check that the service had of the same address.
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

// Keep returns what is worth keeping over a restart, sorted by address; it goes into Options.Kept.
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

// digest shortens a definition for the disk: what it says may be secret.
func digest(definition string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(definition))
	return fmt.Sprintf("%016x", h.Sum64())
}
