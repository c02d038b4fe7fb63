package convert

import (
	"cmp"
	"time"
)

// These are the limits for an agent's interval, and HAProxy's default.
const (
	minAgentInterval   = time.Second
	maxAgentInterval   = time.Hour
	usualAgentInterval = 2 * time.Second
)

// agent sets the health table's agent from the servers' options. All agents of a service have the
// same port and interval.
func (p *proxy) agent() {
	var first *server
	var used agentAt
	for _, s := range p.usedServers() {
		at, asks := p.agentOf(s)
		switch {
		case !asks:
		case len(p.health) == 0:
			p.note(s.line, "agent-check: vipd queries the agents of checked endpoints only; add a health table, such as type = \"tcp\", with agent.port = %d", at.port)
		case first == nil:
			first, used = s, at
			p.check(s.line, "agent", map[string]any{"port": int64(at.port), "interval": seconds(at.interval)})
		case at != used:
			p.note(s.line, "all endpoints use the agent's port and interval on line %d; this server's values differ", first.line)
		}
	}
	for _, s := range p.usedServers() {
		if first != nil && !s.has("agent-check") {
			p.note(s.line, "has no agent-check in HAProxy, but vipd queries the agents of all of a service's endpoints")
		}
	}
}

// agentAt is an agent's port and interval.
type agentAt struct {
	port     uint16
	interval time.Duration
}

// agentOf returns a server's agent, and reports whether vipd can query it. It returns false if the
// server has no agent.
func (p *proxy) agentOf(s *server) (agentAt, bool) {
	if !s.has("agent-check") {
		return agentAt{}, false
	}
	port, err := parsePort(s.options["agent-port"])
	if err != nil {
		p.note(s.line, "agent-check: it has no valid agent-port")
		return agentAt{}, false
	}
	if text := s.options["agent-addr"]; text != "" {
		if addr, err := parseAddr(text); err != nil || addr != p.endpoints[s.endpoint].address() {
			p.note(s.line, "agent-check: the agent is at %s, but vipd queries agents at the endpoint's address; %s", plain(text), nearAgent)
			return agentAt{}, false
		}
	}
	asked := usualAgentInterval
	if text := s.options["agent-inter"]; text != "" {
		asked = cmp.Or(p.checkTime(s.line, text).time, asked)
	}
	interval := min(max(asked, minAgentInterval), maxAgentInterval)
	if interval != asked {
		p.note(s.line, "the agent's interval is %s: vipd accepts values from %s to %s", seconds(interval), seconds(minAgentInterval), seconds(maxAgentInterval))
	}
	return agentAt{port, interval}, true
}
