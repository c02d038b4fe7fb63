package agents

import (
	"bufio"
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
	balancer.AgentAnswer
}

// restore uses the answers of an earlier run, which count until the third question without another
// answer. Otherwise endpoints that an agent drains would get connections after a restart.
func (a *Agents) restore() {
	var kept keptAgents
	a.file.Read(&kept)
	now := time.Now()
	for _, k := range kept.Agents {
		if t, err := balancer.ParseTarget(k.Service, k.Address); err == nil {
			a.answers, a.at[t] = a.answers.Set(t, k.AgentAnswer), now
		}
	}
}

// keep requests a save of the answers for the next run. The file is written later, from the answers
// at that time.
func (a *Agents) keep() {
	a.file.Keep(func(w *bufio.Writer) error {
		a.mu.Lock()
		answers := a.answers
		a.mu.Unlock()
		kept := keptAgents{statedir.Version, []keptAnswer{}}
		for t, answer := range answers.All() {
			kept.Agents = append(kept.Agents, keptAnswer{t.Service, t.Address(), answer})
		}
		return statedir.Text(kept)(w)
	})
}
