package agents

import (
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/events"
	"vipd/dataplane/probe"
)

// TestAgentForgottenAfterThreeQuestions asks an agent that no longer answers, as early and as late
// as the runner may ask. The answer must be forgotten after exactly three questions.
func TestAgentForgottenAfterThreeQuestions(t *testing.T) {
	const interval = 5 * time.Second
	for _, pause := range []time.Duration{interval * 9 / 10, interval} {
		a := New(Options{Record: func(events.Event) {}, Kick: func() {}})
		now, target := time.Now(), balancer.Target{Service: "web", Port: 80}
		ask := func(r health.Result) (known bool) {
			r.Began, r.Took = now, time.Second
			now = now.Add(pause)
			a.heard(probe.Heard{Target: target, Rules: health.Rules{Interval: interval}, Result: r})
			return a.answers.Has(target)
		}
		if !ask(health.Result{Outcome: health.Passed, Text: "drain"}) {
			t.Fatal("no answer after a drain")
		}
		for i, want := range []bool{true, true, false} {
			if got := ask(health.Result{Outcome: health.Failed, Text: "connection refused"}); got != want {
				t.Errorf("pause %s: answer counts after %d unanswered questions = %v, want %v", pause, i+1, got, want)
			}
		}
	}
}
