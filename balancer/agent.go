package balancer

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Agent configures the agents of a service's endpoints. An agent is a program on an endpoint's
// host. It answers each connection with a line that describes the endpoint's state.
type Agent struct {
	// Port is the agent's port at the endpoint's address.
	Port uint16 `toml:"port" range:"1,65535"`
	// Interval is the time between two queries. Default 5s.
	Interval time.Duration `toml:"interval" range:"1s,1h"`
}

// SetDefaults sets the interval to 5s.
func (a *Agent) SetDefaults() { a.Interval = 5 * time.Second }

// Example returns a valid agent, for messages.
func (a *Agent) Example() string { return "{ port = 9707 }" }

// maxAgentTimeout is the maximum time that vipd waits for an agent's answer.
const maxAgentTimeout = 2 * time.Second

// Question returns the health check that queries the agent.
func (a *Agent) Question() *Health {
	return &Health{
		Type: agentHealth, Port: a.Port, Interval: a.Interval, FastInterval: a.Interval,
		Timeout: min(maxAgentTimeout, defaultTimeout(a.Interval)), Rise: 1, Fall: 1,
	}
}

// agentHealth is the type of the check that queries an agent. Users can't set this type.
const agentHealth HealthType = "agent"

// IsAgent reports whether h queries an agent.
func (h *Health) IsAgent() bool { return h.Type == agentHealth }

// AgentState is the state that an agent requests for its endpoint.
type AgentState string

// These are the states that an agent can request. The zero value means up.
const (
	AgentUp      AgentState = ""
	AgentDrained AgentState = "drain"
	AgentDown    AgentState = "down"
)

// AgentAnswer holds the state and weight that an agent has requested in its answers so far.
type AgentAnswer struct {
	State AgentState `json:"state,omitempty"`
	// Drained reports whether the agent has requested a drain. The drain lasts until the agent
	// answers "ready", even if State becomes down.
	Drained bool `json:"drained,omitempty"`
	// Percent is the percentage of the configured weight that the agent requests, 0 to 100.
	Percent int `json:"percent"`
	// Text is the agent's latest line.
	Text string `json:"text"`
}

// NextAnswer combines a with the agent's next line. Lines have the format of HAProxy's agent
// checks: a percentage of the weight, and states such as "up", "ready", "drain", "maint", "down" or
// "stopped". Text after "#" is ignored. Only "ready" ends a drain, and only "up" ends the state
// down. If the line has no state or no percentage, the value in a remains. The bool is false if the
// line contains no known word.
func (a AgentAnswer) NextAnswer(line string) (AgentAnswer, bool) {
	words, _, _ := strings.Cut(line, "#")
	known, down := false, a.State == AgentDown
	for _, word := range strings.FieldsFunc(words, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' }) {
		switch word = strings.ToLower(word); word {
		case "ready":
			a.Drained, known = false, true
		case "drain", "maint":
			a.Drained, known = true, true
		case "up":
			down, known = false, true
		case "down", "fail", "failed", "stopped":
			down, known = true, true
		default:
			number, isPercent := strings.CutSuffix(word, "%")
			if n, err := strconv.ParseUint(number, 10, 31); err == nil && isPercent {
				a.Percent, known = min(int(n), 100), true
			}
		}
	}
	switch a.State = AgentUp; {
	case down:
		a.State = AgentDown
	case a.Drained:
		a.State = AgentDrained
	}
	a.Text = strings.TrimSpace(line)
	return a, known
}

// FirstAnswer returns the state before an agent's first answer: the endpoint has its configured
// weight.
func FirstAnswer() AgentAnswer { return AgentAnswer{Percent: 100} }

// answered applies the agent's answer to c. A weight in the override o has priority over the
// agent's percentage.
func (c *candidate) answered(a AgentAnswer, o *Override) {
	if o == nil || o.Weight == nil {
		c.percent = a.Percent
	}
	if a.State == AgentDown {
		c.health, c.agentDown = HealthDown, true
	}
}

// drains reports whether the agent's answer puts the endpoint into draining: its connections
// continue, but it gets no new connections. A draining setting in the override o has priority.
func (a AgentAnswer) drains(o *Override) bool {
	return a.State == AgentDrained && (o == nil || o.Draining == nil)
}

// Refuses reports whether the endpoint gets no new connections because of the answer. A weight or a
// draining setting in the override o has priority, except over the state down.
func (a AgentAnswer) Refuses(o *Override) bool {
	return a.State == AgentDown || a.drains(o) || a.Percent == 0 && (o == nil || o.Weight == nil)
}

// agentSteps is the Percent that stands for the full weight.
const agentSteps = 100

// scaleByAgents reduces weights to the percentages that agents request. Weights are whole numbers,
// so it first multiplies all weights by 100, or by less if they would exceed the maximum weight.
func scaleByAgents(candidates []candidate) {
	heaviest, scaled := 1, false
	for i := range candidates {
		c := &candidates[i]
		heaviest = max(heaviest, c.Weight)
		scaled = scaled || c.State == Active && c.percent < agentSteps
	}
	if !scaled {
		return
	}
	times := max(1, min(agentSteps, MaxWeight/heaviest))
	for i := range candidates {
		c := &candidates[i]
		if c.Weight > 0 && c.percent > 0 {
			c.Weight = max(1, c.Weight*times*c.percent/agentSteps)
		}
	}
}

func (r *healthReader) checkAgent(a *Agent) {
	if a != nil && a.Port == 0 {
		r.errorf("agent.port", "needs the agent's port, such as 9707")
	}
}

// String formats the answer: "drain" or "75%".
func (a AgentAnswer) String() string {
	return cmp.Or(string(a.State), fmt.Sprintf("%d%%", a.Percent))
}
