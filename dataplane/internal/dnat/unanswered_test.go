package dnat

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
)

// TestUnansweredFlowsEnd uses every way to stop new connections to an endpoint, while it and
// another endpoint have flows. Flows that the first endpoint has not answered must end immediately,
// and all other flows must stay.
func TestUnansweredFlowsEnd(t *testing.T) {
	const none, reply = conntrack.DstNAT, conntrack.DstNAT | conntrack.SeenReply
	flows := map[string]struct {
		proto  balancer.Protocol
		state  string
		status conntrack.Status
		ends   bool
	}{
		"tcp syn":            {proto: balancer.TCP, state: "syn-sent", status: none, ends: true},
		"tcp syn-ack":        {proto: balancer.TCP, state: "syn-recv", status: reply},
		"tcp established":    {proto: balancer.TCP, state: "established", status: reply},
		"sctp init":          {proto: balancer.SCTP, state: "cookie-wait", status: none, ends: true},
		"sctp init-ack":      {proto: balancer.SCTP, state: "cookie-wait", status: reply, ends: true},
		"sctp cookie-echoed": {proto: balancer.SCTP, state: "cookie-echoed", status: reply, ends: true},
		"sctp established":   {proto: balancer.SCTP, state: "established", status: reply},
		"udp unreplied":      {proto: balancer.UDP, state: "unreplied", status: none, ends: true},
		"udp replied":        {proto: balancer.UDP, state: "replied", status: reply},
	}
	at := func(p balancer.Protocol) balancer.Key { return balancer.Key{Addr: key(0).Addr, Port: 80, Proto: p} }
	protocols := []balancer.Protocol{balancer.TCP, balancer.SCTP, balancer.UDP}
	for _, state := range []balancer.BackendState{balancer.Down, balancer.Draining, balancer.ZeroWeight, balancer.Standby, balancer.Ejected, balancer.Removed} {
		t.Run(string(state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &flowTable{flows: map[string]conntrack.Flow{}}
				fl := NewFlows(table, slog.New(slog.DiscardHandler))
				apply := func(stopped bool) {
					for _, p := range protocols {
						f := web(at(p), 1, 2)
						if stopped {
							f.Backends[1].State, f.Backends[1].Weight = state, 0
						}
						fl.Applied([]dataplane.Change{{Key: f.Key, New: f}}, nil)
					}
				}
				apply(false)
				time.Sleep(time.Hour)
				for name, f := range flows {
					table.add(name, at(f.proto), 2, f.status)
					table.add(name+" elsewhere", at(f.proto), 1, f.status)
					for _, n := range []string{name, name + " elsewhere"} {
						flow := table.flows[n]
						flow.State = f.state
						table.flows[n] = flow
					}
				}
				apply(true)
				time.Sleep(2 * minPause)
				synctest.Wait()
				for name, f := range flows {
					if _, there := table.flows[name]; there == f.ends {
						t.Errorf("%s: flow exists = %v, want %v", name, there, !f.ends)
					}
					if _, there := table.flows[name+" elsewhere"]; !there {
						t.Errorf("%s: flow to another endpoint exists = false, want true", name)
					}
				}
				if err := fl.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestHalfOpenIsNotLive checks which flows count as live connections. An unanswered TCP or SCTP
// handshake must not count.
func TestHalfOpenIsNotLive(t *testing.T) {
	busy := func(*conntrack.Flow) bool { return false }
	for name, c := range map[string]struct {
		flow conntrack.Flow
		want bool
	}{
		"tcp syn":       {flow: conntrack.Flow{Proto: balancer.TCP, State: "syn-sent"}},
		"tcp":           {flow: conntrack.Flow{Proto: balancer.TCP, State: "established", Status: conntrack.SeenReply}, want: true},
		"tcp ended":     {flow: conntrack.Flow{Proto: balancer.TCP, State: "time-wait", Status: conntrack.SeenReply}},
		"sctp init":     {flow: conntrack.Flow{Proto: balancer.SCTP, State: "cookie-wait"}},
		"sctp init-ack": {flow: conntrack.Flow{Proto: balancer.SCTP, State: "cookie-wait", Status: conntrack.SeenReply}},
		"sctp":          {flow: conntrack.Flow{Proto: balancer.SCTP, State: "established", Status: conntrack.SeenReply}, want: true},
		"udp one-way":   {flow: conntrack.Flow{Proto: balancer.UDP, State: "unreplied"}, want: true},
	} {
		if got := isLive(&c.flow, busy); got != c.want {
			t.Errorf("%s: isLive = %v, want %v", name, got, c.want)
		}
	}
}
