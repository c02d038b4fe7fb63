package agents

import (
	"context"
	"fmt"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/dataplane/probe"
	"vipd/store/statedir"
)

// outdated reports whether a question sent at asked is at least the third since the last answer. If
// that question also stays unanswered, the last answer no longer counts. The limit is 2.5
// intervals, because questions may be a tenth of the interval early.
func outdated(answered, asked time.Time, interval time.Duration) bool {
	return asked.Sub(answered) >= interval*5/2
}

// Agents asks the agents of endpoints for their state. Only one goroutine may call Answers. A nil
// *Agents asks no agents.
type Agents struct {
	o       Options
	runner  *probe.Runner
	targets health.Targets
	wanted  snap.Map[balancer.Target, health.Subject]

	file    *statedir.File
	checked bool // set once Answers has dropped stale answers from the previous run

	mu      sync.Mutex // guards the fields below
	answers snap.Map[balancer.Target, balancer.AgentAnswer]
	at      map[balancer.Target]time.Time // when the answers were requested
	saved   time.Time                     // when a save of the file was last requested
	silent  map[balancer.Target]silence
}

// Options configures Agents.
type Options struct {
	// StateDir stores the answers for the next run.
	StateDir *statedir.Dir
	// Record receives events. Kick makes the model call Answers again. Neither may block.
	Record func(events.Event)
	Kick   func()
}

// New loads the answers that the previous run saved. It asks no agent before Answers and Run are
// called.
func New(o Options) *Agents {
	a := &Agents{
		o: o, targets: health.Targets{Agents: true}, at: map[balancer.Target]time.Time{}, silent: map[balancer.Target]silence{},
		file: o.StateDir.File("agents.json", "a restart will lose agents' answers", statedir.Large),
	}
	a.restore()
	a.runner = probe.NewRunner(probe.Options{Report: func([]probe.Transition) {}, OnResult: a.process})
	return a
}

// Run asks the agents until ctx is done.
func (a *Agents) Run(ctx context.Context) error {
	a.runner.Run(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keep() // with the times of the last answers
	return nil
}

// Answers makes Run ask the agents of the endpoints in the inputs, and no other agents. It returns
// the last answers.
func (a *Agents) Answers(env *balancer.Env, in *balancer.Inputs) (answers snap.Map[balancer.Target, balancer.AgentAnswer]) {
	if a == nil {
		return answers
	}
	before := a.wanted
	if a.wanted = a.targets.Next(env, in); a.wanted != before {
		a.runner.Set(a.wanted)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for t, c := range snap.Diff(before, a.wanted) {
		if !c.HasNew {
			a.forgetLocked(t)
			delete(a.silent, t)
		}
	}
	if !a.checked {
		a.checked = true
		now := time.Now()
		for t := range a.answers.Keys() {
			s, wanted := a.wanted.Get(t)
			if !wanted || outdated(a.at[t].Add(saveInterval), now, s.Health.Interval) {
				a.forgetLocked(t)
				continue
			}
			a.at[t] = now // this run has asked no question yet
		}
	}
	return a.answers
}

func (a *Agents) forgetLocked(t balancer.Target) {
	if a.answers.Has(t) {
		a.answers = a.answers.Delete(t)
		a.keep()
	}
	delete(a.at, t)
}

func (a *Agents) process(h probe.TargetResult) {
	a.mu.Lock()
	before, known := a.answers.Get(h.Target)
	if !known {
		before = balancer.FirstAnswer()
	}
	next, understood := before.NextAnswer(h.Text)
	turned := a.countLocked(&h, h.Outcome == health.Passed && understood)
	switch {
	case h.Outcome == health.Passed && understood:
		a.at[h.Target] = h.Began
		if !known || next != before {
			a.answers = a.answers.Set(h.Target, next)
			a.keep()
		} else if h.Began.Sub(a.saved) >= saveInterval {
			a.keep()
		}
	case known && outdated(a.at[h.Target], h.Began, h.Rules.Interval):
		next = balancer.FirstAnswer()
		next.Text = fmt.Sprintf("no answer from the agent since %s: %s", a.at[h.Target].Local().Format(time.TimeOnly), h.Text)
		a.forgetLocked(h.Target)
	default:
		next = before
	}
	a.mu.Unlock()
	if next.State == before.State && next.Percent == before.Percent && !turned {
		return
	}
	if next.State != before.State {
		a.o.Record(events.Event{Kind: events.Health, Service: h.Target.Service, Endpoint: h.Target.Address(), Text: stateText(next.State), Cause: next.Text})
	}
	a.o.Kick()
}

func stateText(s balancer.AgentState) string {
	switch s {
	case balancer.AgentDrained:
		return "is drained by its agent"
	case balancer.AgentDown:
		return "is down according to its agent"
	}
	return "is up according to its agent"
}
