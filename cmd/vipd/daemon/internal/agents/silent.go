package agents

import (
	"fmt"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/wording"
	"vipd/dataplane/probe"
)

// maxUnanswered is the number of consecutive questions without an answer after which an agent is
// reported as silent.
const maxUnanswered = 3

// silence counts consecutive questions that an agent has not answered.
type silence struct {
	questions int
	text      string // the result of question maxUnanswered
}

// countLocked updates the number of questions that an agent has left unanswered. It reports whether
// the agent has become silent, or is no longer silent.
func (a *Agents) countLocked(h *probe.TargetResult, answered bool) (turned bool) {
	s := a.silent[h.Target]
	if answered {
		delete(a.silent, h.Target)
		return s.questions >= maxUnanswered
	}
	if s.questions++; s.questions == maxUnanswered {
		s.text = h.Text
	}
	a.silent[h.Target] = s
	return s.questions == maxUnanswered
}

// Problems returns a problem for each service with silent agents. Its cost depends on the number of
// agents that did not answer the last question. A nil *Agents has no problems.
func (a *Agents) Problems(services snap.Map[balancer.Name, *balancer.Service]) (all []balancer.Problem) {
	if a == nil {
		return nil
	}
	silent := map[balancer.Name]map[balancer.Target]string{}
	a.mu.Lock()
	for t, s := range a.silent {
		if s.questions >= maxUnanswered && services.Has(t.Service) {
			if silent[t.Service] == nil {
				silent[t.Service] = map[balancer.Target]string{}
			}
			silent[t.Service][t] = s.text
		}
	}
	a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(silent)) {
		targets := slices.SortedFunc(maps.Keys(silent[name]), balancer.Target.Compare)
		endpoints := targets[0].Address()
		if more := len(targets) - 1; more > 0 {
			endpoints += " and " + wording.Count(more, "more endpoint")
		}
		all = append(all, balancer.Problem{
			Severity: balancer.SeverityWarning, Origin: services.At(name).Origin.At("health"), Service: name, Field: "health.agent",
			Text: fmt.Sprintf("the agent of %s does not answer, so the endpoint has its configured weight and state: %s", endpoints, silent[name][targets[0]]),
		})
	}
	return all
}
