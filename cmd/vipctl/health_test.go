package main

import (
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
)

// TestEjectedEndpointReason shows an ejected endpoint without checks. The wide table and the
// description must show the reason. The narrow table must show only the state.
func TestEjectedEndpointReason(t *testing.T) {
	until := time.Date(2026, 3, 4, 12, 0, 30, 0, time.Local)
	rows := []api.Endpoint{
		{Service: "web", Address: "192.168.1.11:8080", State: balancer.Active, Weight: 1},
		{Service: "web", Address: "192.168.1.12:8080", State: balancer.Ejected, Ejection: &balancer.Ejection{Until: until, Cause: "connection refused"}},
	}
	p := &cli.Printer{World: cli.World{Now: time.Now}}
	want := "connections fail: connection refused; ejected until 12:00:30 at the latest"
	for _, got := range []string{
		endpointsTable(p, rows).Text(table.Form{Wide: true}), describedChecks(p, &api.Service{Endpoints: rows}).Text(table.Form{}),
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("output =\n%s\nwant %q in it once", got, want)
		}
	}
	if got := endpointsTable(p, rows).Text(table.Form{}); !strings.Contains(got, " ejected ") {
		t.Errorf("output =\n%s\nwant the state in it", got)
	}
}

// TestWhy describes endpoints in several states. There must be one note for the last result of a
// check, and one note for everything else that affects the endpoint's use.
func TestWhy(t *testing.T) {
	p := &cli.Printer{World: cli.World{Now: time.Now}}
	yes, none := true, 0
	failed := &api.Check{LastOutcome: "failed", LastText: "no answer within 1s", Against: 1, Needed: 3}
	for want, e := range map[string]api.Endpoint{
		"":                {State: balancer.Active},
		"not checked yet": {State: balancer.Active, Check: &api.Check{}},
		"answered 200 OK": {State: balancer.Active, Check: &api.Check{LastOutcome: "passed", LastText: "answered 200 OK"}},
		"not checked: health.allow_exec is false here":                  {State: balancer.Active, Unchecked: "health.allow_exec is false here"},
		"no answer within 1s (failed 1 of 3); used: panic":              {State: balancer.Active, Health: balancer.HealthDown, Check: failed},
		"no answer within 1s (failed 1 of 3); its connections were cut": {State: balancer.Down, Health: balancer.HealthDown, Check: failed, Cut: true},
		"up according to 2 of 3 nodes; this node: no answer within 1s":  {State: balancer.Active, Health: balancer.HealthUp, Check: &api.Check{LastOutcome: "passed", LastText: "up according to 2 of 3 nodes", Fleet: &api.FleetCheck{Here: "this node: no answer within 1s"}}},
		"draining, by ana: kernel update":                               {State: balancer.Draining, Override: &balancer.Override{Draining: &yes, By: "ana", Reason: "kernel update"}},
		"draining":                                                      {State: balancer.Draining, Override: &balancer.Override{Draining: &yes}},
		"drained by its definition":                                     {State: balancer.Draining},
		"weight 0, by ana: disk":                                        {State: balancer.ZeroWeight, Override: &balancer.Override{Weight: &none, By: "ana", Reason: "disk"}},
		"ramping up: 20% of its weight":                                 {State: balancer.Active, Ramp: 20},
		"removed from its service":                                      {State: balancer.Removed},
	} {
		if got := why(p, &e); got != want {
			t.Errorf("why(%+v) = %q, want %q", e, got, want)
		}
	}
}

// TestScaledWeights shows endpoints' weights during a slow start, and weights that agents reduce.
// The text must show the configured weights, although vipd uses multiples of them.
func TestScaledWeights(t *testing.T) {
	five := 5
	got := weights([]api.Endpoint{
		{Service: "web", Configured: 10, Weight: 20, State: balancer.Active, Ramp: 20},
		{Service: "web", Configured: 10, Weight: 100, State: balancer.Active},
		{Service: "web", Configured: 10, Weight: 50, State: balancer.Active, Override: &balancer.Override{Weight: &five}},
		{Service: "web", Configured: 10, State: balancer.Down},
		{Service: "web", Port: "other", Configured: 10, Weight: 10, State: balancer.Active},
		{Service: "dns", Configured: 1, Weight: 1, State: balancer.Active},
		{Service: "agent", Configured: 1, Weight: 75, State: balancer.Active, Agent: &balancer.AgentAnswer{Percent: 75}},
		{Service: "agent", Configured: 2, Weight: 200, State: balancer.Active, Agent: &balancer.AgentAnswer{Percent: 100}},
		{Service: "agent", Configured: 2, Weight: 500, State: balancer.Active, Agent: &balancer.AgentAnswer{Percent: 50}, Override: &balancer.Override{Weight: &five}},
		{Service: "agent", Configured: 4, Weight: 20, State: balancer.Active, Agent: &balancer.AgentAnswer{Percent: 50}, Ramp: 10},
		{Service: "agent", Configured: 4, State: balancer.Down, Agent: &balancer.AgentAnswer{State: balancer.AgentDown, Percent: 50}},
	})
	if text := strings.Join(got, ", "); text != "10 at 20%, 10, 5, 0, 10, 1, 1 at 75%, 2, 5, 4 at 5%, 0" {
		t.Errorf("weights = %s, want the configured weights", text)
	}
}
