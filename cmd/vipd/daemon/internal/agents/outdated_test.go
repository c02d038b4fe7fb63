package agents

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/events"
	"vipd/dataplane/probe"
	"vipd/store/statedir"
)

// TestAgentForgottenAfterThreeQuestions asks an agent that no longer answers, with the shortest and
// the longest pauses that the runner may make. The answer must be forgotten after exactly three
// questions.
func TestAgentForgottenAfterThreeQuestions(t *testing.T) {
	const interval = 5 * time.Second
	for _, pause := range []time.Duration{interval * 9 / 10, interval} {
		a := New(Options{Record: func(events.Event) {}, Kick: func() {}})
		now, target := time.Now(), balancer.Target{Service: "web", Port: 80}
		ask := func(r health.Result) (known bool) {
			r.Began, r.Took = now, time.Second
			now = now.Add(pause)
			a.process(probe.TargetResult{Target: target, Rules: health.Rules{Interval: interval}, Result: r})
			return a.answers.Has(target)
		}
		if !ask(health.Result{Outcome: health.Passed, Text: "drain"}) {
			t.Fatal("after \"drain\": answer is known = false, want true")
		}
		for i, want := range []bool{true, true, false} {
			if got := ask(health.Result{Outcome: health.Failed, Text: "connection refused"}); got != want {
				t.Errorf("pause %s: after %d unanswered questions, answer is used = %v, want %v", pause, i+1, got, want)
			}
		}
	}
}

// served returns a service with an agent, and the target of its endpoint.
func served() (in balancer.Inputs, target balancer.Target) {
	target = balancer.Target{Service: "web", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}
	in.Services = in.Services.Set("web", &balancer.Service{
		Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("127.1.0.1")}, Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}},
		Endpoints: []balancer.Endpoint{{Address: target.Addr, Weight: 1}},
		Health:    &balancer.Health{Type: balancer.TCPHealth, Agent: &balancer.Agent{Port: 9, Interval: time.Second}},
	})
	return in, target
}

// TestAnswersOutliveRestart restarts after an agent has drained its endpoint. The drain must apply
// at once, and only until the third unanswered question. An answer for a removed service must not
// be used.
func TestAnswersOutliveRestart(t *testing.T) {
	in, target := served()
	start := restarts(t)
	rules := health.Rules{Interval: time.Second}
	a, stop := start()
	for _, of := range []balancer.Target{target, {Service: "removed", Addr: target.Addr, Port: 80}} {
		a.process(probe.TargetResult{Target: of, Rules: rules, Result: health.Result{Outcome: health.Passed, Text: "drain 50%", Began: time.Now()}})
	}
	stop()
	a, stop = start()
	defer stop()
	answers := a.Answers(&balancer.Env{}, &in)
	if got := answers.At(target); answers.Len() != 1 || got.State != balancer.AgentDrained || !got.Drained || got.Percent != 50 {
		t.Errorf("after a restart: answers = %+v and %d more, want only the answers \"drain\" and 50 %%", got, answers.Len()-1)
	}
	for i, want := range []bool{true, true, false} {
		a.process(probe.TargetResult{Target: target, Rules: rules, Result: health.Result{Outcome: health.Failed, Began: time.Now().Add(time.Duration(i+1) * time.Second)}})
		if got := a.Answers(&balancer.Env{}, &in).Has(target); got != want {
			t.Errorf("after %d unanswered questions, answer is used = %t, want %t", i+1, got, want)
		}
	}
}

// restarts returns a function that starts a run with the answers of the previous run. That function
// returns the run's Agents, and a function that saves the answers.
func restarts(t *testing.T) func() (*Agents, func()) {
	path := t.TempDir()
	return func() (*Agents, func()) {
		dir := statedir.New(path, func() {})
		return New(Options{StateDir: dir, Record: func(events.Event) {}, Kick: func() {}}), func() {
			if err := dir.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestOldAnswersAfterRestart restarts when the last answers have different ages. Some runs are
// stopped before the restart, and some receive the same answer again. An answer must be used only
// if its age is at most three question intervals plus one save interval.
func TestOldAnswersAfterRestart(t *testing.T) {
	in, target := served()
	for _, c := range []struct {
		ages  []time.Duration // ages of the answers at the restart
		stops bool
		want  bool
	}{
		{[]time.Duration{30 * time.Second}, false, true},
		{[]time.Duration{time.Hour}, false, false},
		{[]time.Duration{time.Hour, 30 * time.Second}, true, true},
		{[]time.Duration{time.Hour, -2 * saveInterval}, false, true}, // the second answer is saved again
		{[]time.Duration{time.Hour, 2 * saveInterval}, true, false},
	} {
		start := restarts(t)
		a, save := start()
		for _, age := range c.ages {
			a.process(probe.TargetResult{Target: target, Rules: health.Rules{Interval: time.Second}, Result: health.Result{Outcome: health.Passed, Text: "drain", Began: time.Now().Add(-age)}})
		}
		if c.stops {
			ended, end := context.WithCancel(t.Context())
			end()
			_ = a.Run(ended)
		}
		save()
		a, save = start()
		if got := a.Answers(&balancer.Env{}, &in).Has(target); got != c.want {
			t.Errorf("answers of ages %s, saved at the stop = %t: answer is used = %t, want %t", c.ages, c.stops, got, c.want)
		}
		save()
	}
}

// TestQuestionsCountFromRestart restarts 30 s after an answer, and with an answer without a time,
// as earlier versions saved it. In both cases, vipd must use the answer until the third unanswered
// question.
func TestQuestionsCountFromRestart(t *testing.T) {
	in, target := served()
	rules := health.Rules{Interval: time.Second}
	for name, answered := range map[string]time.Time{"30 s before": time.Now().Add(-30 * time.Second), "without a time": {}} {
		start := restarts(t)
		a, save := start()
		a.process(probe.TargetResult{Target: target, Rules: rules, Result: health.Result{Outcome: health.Passed, Text: "drain", Began: answered}})
		save()
		a, save = start()
		a.Answers(&balancer.Env{}, &in)
		for i, want := range []bool{true, true, false} {
			a.process(probe.TargetResult{Target: target, Rules: rules, Result: health.Result{Outcome: health.Failed, Began: time.Now().Add(time.Duration(i+1) * time.Second)}})
			if got := a.Answers(&balancer.Env{}, &in).Has(target); got != want {
				t.Errorf("answer %s: after %d unanswered questions, it is used = %t, want %t", name, i+1, got, want)
			}
		}
		save()
	}
}

// TestSilentAgent asks an agent that has never answered. The third question must cause a problem
// and kick the model. The next answer must also kick the model.
func TestSilentAgent(t *testing.T) {
	kicks := 0
	a := New(Options{Record: func(events.Event) {}, Kick: func() { kicks++ }})
	in, target := served()
	a.Answers(&balancer.Env{}, &in)
	ask := func(o health.Outcome, wantProblem bool, wantKicks int) {
		t.Helper()
		a.process(probe.TargetResult{Target: target, Result: health.Result{Outcome: o, Text: "up"}})
		problems := a.Problems(in.Services)
		if (len(problems) == 1) != wantProblem || kicks != wantKicks {
			t.Errorf("problems = %v, want a problem = %t; kicks = %d, want %d", problems, wantProblem, kicks, wantKicks)
		}
	}
	ask(health.Failed, false, 0)
	ask(health.Failed, false, 0)
	ask(health.Failed, true, 1)
	ask(health.Failed, true, 1)
	ask(health.Passed, false, 2)
	ask(health.Failed, false, 2)
}
