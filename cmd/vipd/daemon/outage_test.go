package daemon_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/test/wait"
)

// TestOutageIsReported makes a service's endpoints fail one after the other, and then recover.
// Events, a problem, the status line and a metric must report the outage by the service's name.
// Services without endpoints, or with only drained endpoints, must have their own problems instead.
func TestOutageIsReported(t *testing.T) {
	one := serverUntil(t, "127.42.1.1:9001", "one")
	two := serverUntil(t, "127.42.1.1:9002", "two")
	n := startNode(t, checked+`
[services.empty]
vips = ["127.42.0.2"]
ports = [{ port = 8080 }]
health = { type = "tcp" }
[services.drained]
vips = ["127.42.0.3"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.42.1.1", port = 9003, draining = true }]
health = { type = "tcp", interval = "100ms", timeout = "90ms" }
`)
	story := func(want ...string) {
		t.Helper()
		wait.For(t, 20*time.Second, fmt.Sprint(want), func() bool {
			var got []string
			for _, e := range n.events(api.EventsQuery{Service: "web", Kind: "health"}) {
				if e.Endpoint == "" {
					got = append(got, strings.Trim(e.Text+": "+e.Cause, ": "))
					if over := e.Level == slog.LevelInfo; over != (e.Lasted > 0) {
						t.Errorf("event = %+v, want a duration only in the end event", e)
					}
				}
			}
			return strings.Join(got, "; ") == strings.Join(want, "; ")
		})
	}
	wait.For(t, 20*time.Second, "both to be up", func() bool {
		return len(n.events(api.EventsQuery{Service: "web", Kind: "health"})) == 2
	})
	one()
	wait.For(t, 20*time.Second, "the first to be down", func() bool { return strings.Contains(n.endpoints(), "9001:down/0") })
	story()
	two()
	const begins, ends = "has no endpoint left at port 8080/tcp: all endpoints fail their checks: clients are refused", "has an endpoint again at port 8080/tcp"
	story(begins)
	var s api.Status // the problem may appear shortly after the event
	wait.For(t, 0, "status to say that web has no endpoint left", func() bool { s = n.status(); return fmt.Sprint(s.Health.Out) == "[web]" })
	if got := fmt.Sprint(s.Problems); strings.Count(got, "service web: no_endpoints: port 8080/tcp: all endpoints fail") != 1 ||
		strings.Count(got, "service empty: endpoints: the service has no endpoints: clients are refused") != 1 {
		t.Errorf("problems = %s, want one problem for each service", got)
	}
	if _, metrics := n.get("/metrics"); !strings.Contains(metrics, "\nvipd_problems{field=\"no_endpoints\",service=\"web\"} 1\n") {
		t.Errorf("metrics have no series for a service without endpoints")
	}
	server(t, "127.42.1.1:9002", "two")
	story(begins, ends)
	const idle, drained = "endpoints: port 8080/tcp: no endpoint accepts new connections: ", "service drained: "
	wait.For(t, 0, "status to say that the outage is over", func() bool {
		s := n.status()
		return len(s.Health.Out) == 0 && len(s.Problems) == 2 && strings.Contains(n.problems(), drained+idle+"1 with draining = true")
	})
	for _, yes := range []bool{true, false} {
		for i, port := range []string{"9001", "9002"} {
			if _, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.42.1.1:" + port, Draining: &yes, Force: true}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(n.problems(), "service web: "+idle+"2 drained by an override"); got != (yes && i == 1) {
				t.Errorf("draining = %v for endpoint %d: problems = %s; want a problem only if both endpoints drain", yes, i, n.problems())
			}
		}
	}
	if got := n.eventsOf(events.Problem); strings.Count(got, "web has a problem: ") != 1 || strings.Count(got, "web problem resolved: ") != 1 || strings.Count(got, idle+"2 drained by an override") != 2 {
		t.Errorf("problem events =\n%s\nwant one start event and one end event", got)
	}
}

// TestCheckThatCannotRun configures a check that can't run. After fall attempts, the service must
// have a problem with the reason until the check is removed.
func TestCheckThatCannotRun(t *testing.T) {
	server(t, "127.42.1.1:9001", "one")
	n := startNode(t, checked+`
[services.exn]
vips = ["127.42.0.2"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.42.1.1", port = 9001 }, { address = "127.42.1.1", port = 9002 }]
health = { type = "exec", command = ["/nowhere/check"], interval = "100ms", timeout = "90ms", fall = 2 }
`)
	wait.For(t, 20*time.Second, "both checks to be reported as unable to run", func() bool {
		h := n.status().Health
		return h.Unable == 2 && h.Checked == 4
	})
	story := n.eventsOf(events.Problem)
	if !strings.Contains(story, "exn has a problem: ") || !strings.Contains(story, "can't be checked from here: ") || strings.Count(story, "\n") != 0 {
		t.Errorf("events =\n%s\nwant one event about the check", story)
	}
	if got := fmt.Sprint(n.status().Problems); strings.Count(got, "can't be checked") != 1 || !strings.Contains(got, "no such file") {
		t.Errorf("problems = %s, want one problem with the reason", got)
	}
	n.write(checked) // replaces the service, so the problem must disappear
	wait.For(t, 20*time.Second, "the end of the problem", func() bool { return n.status().Health.Unable == 0 && len(n.status().Problems) == 0 })
	if story := n.eventsOf(events.Problem); !strings.Contains(story, "exn problem resolved: ") {
		t.Errorf("events =\n%s\nwant an end event", story)
	}
}

// TestAllowExecIsFollowed sets health.allow_exec while vipd is running. The reload must not report
// that this requires a restart.
func TestAllowExecIsFollowed(t *testing.T) {
	server(t, "127.42.1.1:9001", "one")
	server(t, "127.42.1.1:9002", "two")
	n := startNode(t, checked)
	n.write(checked + "[health]\nallow_exec = true\n")
	r, err := n.client.Reload(t.Context(), "")
	if err != nil || len(r.Problems) > 0 {
		t.Errorf("reload: problems = %v, error = %v, want no problems and no error", r.Problems, err)
	}
}

// TestManyStillDown restarts vipd while many endpoints are down. There must be one event for all of
// them.
func TestManyStillDown(t *testing.T) {
	services := "[services.web]\nvips = [\"127.42.0.1\"]\nports = [{ port = 8080 }]\nhealth = { type = \"tcp\", interval = \"100ms\", timeout = \"90ms\" }\nendpoints = ["
	for i := range 21 {
		services += fmt.Sprintf("{ address = \"127.42.1.1\", port = %d }, ", 9100+i)
	}
	n := startNode(t, services+"]\n")
	wait.For(t, 20*time.Second, "all to be down", func() bool { return n.status().Health.Down == 21 })
	n.stop()
	n.start()
	story := n.eventsOf(events.Health)
	want := "21 endpoints are still down, as they were before vipd started; vipctl get endpoints --down lists them\nweb has no endpoint left at port 8080/tcp: all endpoints fail their checks: clients are refused"
	if story != want {
		t.Errorf("journal =\n%s\nwant\n%s", story, want)
	}
}

// TestUncheckedReason defines a check that no node runs for an endpoint. The endpoint must show the
// reason.
func TestUncheckedReason(t *testing.T) {
	n := startNode(t, `
[services.log]
vips = ["127.42.0.1"]
ports = [{ port = 5140, protocol = "udp" }]
endpoints = [{ address = "127.42.1.1" }]
health = { type = "tcp" }
`)
	all, err := n.client.Endpoints(t.Context())
	if err != nil || len(all) != 1 || all[0].Check != nil || !strings.HasPrefix(all[0].Unchecked, "a tcp check can't test the ports of this service") {
		t.Errorf("endpoints = %+v, error = %v, want the reason why they are not checked", all, err)
	}
}
