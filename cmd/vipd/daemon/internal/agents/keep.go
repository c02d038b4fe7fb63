package agents

import (
	"bufio"
	"maps"
	"time"

	"vipd/balancer"
	"vipd/store/statedir"
)

// keptAgents is the content of the file agents.json.
type keptAgents struct {
	Version int          `json:"version"`
	Agents  []keptAnswer `json:"agents"`
}

type keptAnswer struct {
	Service balancer.Name `json:"service"`
	Address string        `json:"address"`
	// Answered is the time of the last answer before the file was written.
	Answered time.Time `json:"answered"`
	balancer.AgentAnswer
}

// saveInterval limits how old the answer times in the file may be.
const saveInterval = time.Minute

// restore reads the answers of an earlier run. Without them, endpoints that an agent drains would
// get connections after a restart. The first call of Answers drops the answers that are too old,
// and dates the remaining answers from that call.
func (a *Agents) restore() {
	var kept keptAgents
	a.file.Read(&kept)
	now := time.Now()
	for _, k := range kept.Agents {
		if t, err := balancer.ParseTarget(k.Service, k.Address); err == nil {
			a.answers, a.at[t] = a.answers.Set(t, k.AgentAnswer), k.Answered
			if k.Answered.IsZero() || k.Answered.After(now) { // written by an earlier version, or before the clock was set back
				a.at[t] = now
			}
		}
	}
}

// keep schedules a save of the answers for the next run. The file is written later, with the
// answers at that time. The caller must hold the lock.
func (a *Agents) keep() {
	a.saved = time.Now()
	a.file.Keep(func(w *bufio.Writer) error {
		a.mu.Lock()
		answers, at := a.answers, maps.Clone(a.at)
		a.mu.Unlock()
		kept := keptAgents{statedir.Version, []keptAnswer{}}
		for t, answer := range answers.All() {
			kept.Agents = append(kept.Agents, keptAnswer{t.Service, t.Address(), at[t], answer})
		}
		return statedir.Text(kept)(w)
	})
}
