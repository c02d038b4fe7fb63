package doctor

import (
	"testing"

	"vipd/balancer"
)

func TestFindingsOfServices(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "services that are refused", change: func(m *fakeHost) {
			for _, name := range []balancer.Name{"a", "a", "b", "c", "d", "e", "f"} {
				m.Problems = append(m.Problems, balancer.Problem{Severity: balancer.SeverityError, Service: name, Field: "vips", Text: "no"})
			}
			m.Problems = append(m.Problems, balancer.Problem{Severity: balancer.SeverityError, Service: "g", Kind: balancer.Outage, Text: "all are down"})
		}, want: []string{"services: problem: services a, b, c, d, e and 1 more: vips: no", "services: problem: service g: all are down"}},
		{name: "problems of several severities", change: func(m *fakeHost) {
			file := balancer.Origin{File: "vipd.toml", Line: 3}
			m.Problems = []balancer.Problem{
				{Severity: balancer.SeverityWarning, Service: "web", Field: "endpoints", Origin: file, Kind: balancer.Idle, Text: "the service has no endpoints: clients are refused"},
				{Severity: balancer.SeverityNearest, Service: "web", Field: "scheduler", Origin: file, Text: "it uses random instead"},
				{Severity: balancer.SeverityWarning, Field: "api.http", Origin: file, Text: "it is open"},
				{Severity: balancer.SeverityError, Text: "the host lacks a device"},
			}
			m.Frontends[0].Idle = "there are no endpoints"
		}, want: []string{
			"vipd: warning: vipd reports problems (1)", "services: problem: vipd.toml:3: service web: scheduler: it uses random instead",
			"services: warning: vipd.toml:3: service web: endpoints: the service has no endpoints: clients are refused", "services: warning: vipd.toml:3: api.http: it is open",
		}},
		{name: "services that nobody serves", change: func(m *fakeHost) {
			m.frontend("10.96.0.11:80/tcp", false)
			m.frontend("10.96.0.11:443/tcp", false)
			m.Frontends[1].Service, m.Frontends[2].Service = "api", "api"
			for i := range m.Frontends {
				m.Frontends[i].Idle = "all endpoints are down"
			}
		}, want: []string{"services: problem: clients of web, api are not served: all endpoints are down"}},
		{name: "a service that is served in part", change: func(m *fakeHost) {
			m.frontend("10.96.0.11:80/tcp", false)
			m.Frontends[1].Service, m.Frontends[1].Idle = m.Frontends[0].Service, "there are no endpoints"
		}, want: []string{"services: problem: clients of web at 10.96.0.11:80/tcp are not served: there are no endpoints"}},
		{name: "a node port at the node's addresses of a family that the service has no endpoints of", change: func(m *fakeHost) {
			m.frontend("[fd01::1]:30080/tcp", true)
			m.Frontends[1].Service, m.Frontends[1].Idle = m.Frontends[0].Service, "there are no endpoints"
		}},
	})
}

// TestIdle combines backends' states. There must be no reason if a backend gets new connections.
// Otherwise the reason must name each state once.
func TestIdle(t *testing.T) {
	type states = []balancer.BackendState
	for _, test := range []struct {
		states states
		want   string
	}{
		{nil, "there are no endpoints"},
		{states{balancer.Removed}, "there are no endpoints"},
		{states{balancer.Down, balancer.Active}, ""},
		{states{balancer.Down, balancer.Down, balancer.Removed}, "all endpoints are down"},
		{states{balancer.Draining}, "all endpoints are drained"},
		{states{balancer.ZeroWeight, balancer.Draining, balancer.Down}, "all endpoints are down or drained or at weight 0"},
		{states{balancer.Remote}, "all endpoints are on nodes that locality excludes"},
	} {
		if got := Idle(test.states); got != test.want {
			t.Errorf("Idle(%v) = %q, want %q", test.states, got, test.want)
		}
	}
}
