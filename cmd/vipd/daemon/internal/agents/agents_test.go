package agents_test

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/agents"
	"vipd/test/wait"
)

// script is an agent that answers each connection with its current line. While the line is empty,
// it closes connections without an answer.
type script struct {
	at   netip.AddrPort
	line atomic.Value
}

func newScript(t *testing.T) *script {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	s := &script{at: netip.MustParseAddrPort(listener.Addr().String())}
	s.line.Store("")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(s.line.Load().(string)))
			_ = conn.Close()
		}
	}()
	return s
}

// TestAgents changes the lines that an agent sends. The runner must store each answer, and record
// an event if the answer changes the endpoint's state. If the agent no longer answers, or only
// sends unknown words, its last answer must be forgotten.
func TestAgents(t *testing.T) {
	s := newScript(t)
	recorded, kicks := make(chan events.Event, 100), make(chan struct{}, 100)
	a := agents.New(agents.Options{Record: func(e events.Event) { recorded <- e }, Kick: func() { kicks <- struct{}{} }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = a.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	var in balancer.Inputs
	in.Services = in.Services.Set("web", &balancer.Service{
		Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("127.1.0.1")}, Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}},
		Endpoints: []balancer.Endpoint{{Address: s.at.Addr(), Weight: 1, HealthPort: 9}},
		Health:    &balancer.Health{Type: balancer.TCPHealth, Agent: &balancer.Agent{Port: s.at.Port(), Interval: 100 * time.Millisecond}},
	})
	target := balancer.Target{Service: "web", Addr: s.at.Addr(), Port: 80}
	until := func(what string, want func(balancer.AgentAnswer, bool) bool) {
		t.Helper()
		wait.For(t, wait.Patience, what, func() bool {
			answer, known := a.Answers(&balancer.Env{}, &in).Get(target)
			return want(answer, known)
		})
	}
	s.line.Store("75%\n")
	until("75 %", func(a balancer.AgentAnswer, known bool) bool {
		return known && a.Percent == 75 && a.State == balancer.AgentUp
	})
	s.line.Store("drain #update") // the line has no newline
	until("drain", func(a balancer.AgentAnswer, _ bool) bool { return a.State == balancer.AgentDrained && a.Percent == 75 })
	if e := <-recorded; e.Text != "is drained by its agent" || e.Cause != "drain #update" || e.Endpoint != target.Address() {
		t.Errorf("event = %+v, want a drain with the agent's reason", e)
	}
	s.line.Store("down\n")
	until("down", func(a balancer.AgentAnswer, _ bool) bool { return a.State == balancer.AgentDown })
	s.line.Store("what?\n") // counts as no answer
	until("no answer", func(_ balancer.AgentAnswer, known bool) bool { return !known })
	s.line.Store("up 10%\n")
	until("10 %", func(a balancer.AgentAnswer, known bool) bool { return known && a.Percent == 10 })
	s.line.Store("")
	until("a silent agent", func(_ balancer.AgentAnswer, known bool) bool { return !known })
	if len(kicks) < 6 {
		t.Errorf("kicks = %d, want at least 6, one for each change", len(kicks))
	}
	s.line.Store("50%\n")
	until("50 %", func(_ balancer.AgentAnswer, known bool) bool { return known })
	in.Services = in.Services.Delete("web")
	if n := a.Answers(&balancer.Env{}, &in).Len(); n != 0 {
		t.Errorf("without services: answers = %d, want 0", n)
	}
}
