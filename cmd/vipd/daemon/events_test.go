package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/dataplane"
	"vipd/test/program"
	"vipd/test/wait"
)

type lines struct {
	slog.Handler
	mu  sync.Mutex
	all []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	attrs := map[string]string{}
	r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value.String(); return true })
	if kind := attrs["kind"]; kind != "" {
		l.mu.Lock()
		l.all = append(l.all, fmt.Sprintf("%s %s %s %s %s", kind, attrs["service"], attrs["backend"], r.Message, attrs["cause"]))
		l.mu.Unlock()
	}
	return nil
}

func logged(e *api.Event) string {
	text := e.Text
	if e.Endpoint != "" {
		text = "endpoint " + text
	} else if e.Service != "" {
		text = "service " + text
	}
	return fmt.Sprintf("%s %s %s %s %s", e.Kind, e.Service, e.Endpoint, text, e.Cause)
}

func (n *node) events(q api.EventsQuery) (all []api.Event) {
	n.t.Helper()
	n.retry("events", func() error {
		all = nil
		return n.client.Events(n.t.Context(), q, func(p api.EventPage) error {
			all = append(all, p.Events...)
			return nil
		})
	})
	return all
}

// eventsOf returns the events of a kind, one on each line.
func (n *node) eventsOf(kind events.Kind) string {
	n.t.Helper()
	var lines []string
	for _, e := range n.events(api.EventsQuery{Kind: string(kind)}) {
		lines = append(lines, strings.Trim(e.Subject()+" "+e.Text+": "+e.Cause, ": "))
	}
	return strings.Join(lines, "\n")
}

// watched defines a service with two checked endpoints. The interval and timeout of its checks are
// long enough for a busy machine.
const watched = `
[services.web]
vips = ["127.47.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.47.1.1", port = 9001 }, { address = "127.47.1.1", port = 9002 }]
health = { type = "tcp", interval = "500ms", timeout = "450ms", rise = 1, fall = 2, panic_threshold = 60, on_failure = "cut" }
`

// TestEventsOfAnEndpoint makes an endpoint go down, recover and drain, and edits its file. The
// history and the log must contain each transition once, in the same order, with cause and
// duration.
func TestEventsOfAnEndpoint(t *testing.T) {
	server(t, "127.47.1.1:9001", "one")
	two := serverUntil(t, "127.47.1.1:9002", "two")
	log := &lines{Handler: slog.DiscardHandler}
	n := &node{t: t, dir: t.TempDir(), log: log}
	n.write(watched)
	n.start()
	t.Cleanup(func() { n.stop() })
	health := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, "the second endpoint to be "+want, func() bool {
			all, err := n.client.Endpoints(t.Context())
			return err == nil && len(all) == 2 && string(all[1].Health) == want
		})
	}
	health("up")
	two()
	health("down")
	n.showsFailure()
	serverUntil(t, "127.47.1.1:9002", "two")
	health("up")
	yes, no := true, false
	five, back := 5, balancer.ResetWeight
	for _, q := range []api.OverrideRequest{
		{Service: "web", Address: "127.47.1.1:9002", Draining: &yes, By: "ana", Reason: "kernel update"},
		{Service: "web", Address: "127.47.1.1:9002", Draining: &no, By: "ana", Reason: "kernel update"},
		{Service: "web", Address: "127.47.1.1:9002", Draining: &no, By: "ana", Reason: "which changes nothing"},
		{Service: "web", Address: "127.47.1.1", Weight: &five, By: "ana", Reason: "canary", Expires: time.Hour},
		{Service: "web", Address: "127.47.1.1", Weight: &back, By: "ben"},
	} {
		if _, err := n.client.Override(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	n.write(strings.Replace(watched, "port = 9001", "port = 9001, weight = 7", 1))
	wait.For(t, 10*time.Second, "the changed file", func() bool { return strings.Contains(n.endpoints(), "9001:active/7") })
	if _, err := n.client.Reload(t.Context(), "ana"); err != nil {
		t.Fatal(err)
	}
	wait.For(t, 10*time.Second, "the apply of the changed file", func() bool {
		applies := n.events(api.EventsQuery{Kind: "apply"})
		return len(applies) > 1 && applies[len(applies)-1].Revision == n.status().Sync.Applied
	})
	all := n.events(api.EventsQuery{})
	var story []string
	for i := range all {
		if e := &all[i]; e.Endpoint != "127.47.1.1:9001" && e.Kind != events.Apply {
			story = append(story, strings.Trim(e.Subject()+" "+e.Text+": "+e.Cause, ": "))
			if ended := e.Was != "" || e.Kind == events.Panic && e.Level == slog.LevelInfo; ended && e.Lasted <= 0 {
				t.Errorf("end event = %+v, want a duration", e)
			}
		}
	}
	want := []string{
		"userspace mode serves: vipd has started; configured in " + n.file(),
		"web 127.47.1.1:9002 is up: connected",
		"web 127.47.1.1:9002 is down: connection refused: nothing listens there",
		"web is in panic: port 8080/tcp: 1 of 2 endpoints are up, fewer than 60 percent: all of them are used, healthy or not",
		"web 127.47.1.1:9002 is up again: connected",
		"web is no longer in panic",
		"web 127.47.1.1:9002 drained by " + asCaller(t, "ana") + ": kernel update",
		"web 127.47.1.1:9002 drains: said by " + asCaller(t, "ana") + ": kernel update",
		"web 127.47.1.1:9002 undrained by " + asCaller(t, "ana") + ": kernel update",
		"web 127.47.1.1:9002 no longer drains, and gets new connections",
		"web 127.47.1.1 weight set to 5 for 1h0m0s by " + asCaller(t, "ana") + ": canary",
		"web 127.47.1.1 weight 5 removed by " + asCaller(t, "ben"),
		"reloaded: 1 service (~ web), no problems: a file has changed",
		"reloaded: 1 service (no changes), no problems: vipctl reload by " + asCaller(t, "ana"),
	}
	if !slices.Equal(story, want) {
		t.Errorf("journal =\n%s\nwant\n%s", strings.Join(story, "\n"), strings.Join(want, "\n"))
	}
	n.stop() // after n.stop, nothing is logged
	log.mu.Lock()
	defer log.mu.Unlock()
	for i := range all {
		if line := logged(&all[i]); len(log.all) <= i || log.all[i] != line {
			t.Fatalf("event %d: log has no line %q in order; log =\n%s", i, line, strings.Join(log.all, "\n"))
		}
	}
}

// showsFailure checks what the API shows about an endpoint that is down.
func (n *node) showsFailure() {
	n.t.Helper()
	e := n.list()[1]
	if e.Check == nil || time.Since(e.Check.Since) > time.Hour || e.Check.LastText != "connection refused: nothing listens there" ||
		e.Check.LastOutcome != "failed" || e.Check.Needed != 1 || e.Check.Next.IsZero() && !e.Check.Checking || !e.Until.IsZero() {
		n.t.Errorf("endpoint that is down = %+v with check %+v, want the last check's failure, and the time of the next check", e, e.Check)
	}
	// During a panic, the endpoint is still used, so its connections are not cut.
	const want = "2 1 0 [web] []"
	wait.For(n.t, 0, "status to say of health "+want, func() bool {
		h := n.status().Health
		return fmt.Sprint(h.Checked, h.Down, h.Unknown, h.Panic, h.Out) == want
	})
}

// TestDownIsCut starts with an endpoint that is down and has never been up. Later, the endpoint is
// up and then fails. Its connections must be reported as cut only after this failure.
func TestDownIsCut(t *testing.T) {
	server(t, "127.47.1.1:9001", "one")
	n := startNode(t, strings.Replace(watched, "panic_threshold = 60, ", "", 1))
	shows := func(state balancer.BackendState, cut bool) {
		t.Helper()
		wait.For(t, 20*time.Second, fmt.Sprintf("the endpoint to be %s, and cut: %v", state, cut), func() bool {
			all, err := n.client.Endpoints(t.Context())
			return err == nil && len(all) == 2 && all[1].State == state && all[1].Cut == cut && all[1].Until.IsZero()
		})
	}
	shows(balancer.Down, false)
	stop := serverUntil(t, "127.47.1.1:9002", "two")
	shows(balancer.Active, false)
	stop()
	shows(balancer.Down, true)
}

// TestWatchingEndpointsIsQuiet watches endpoints while their checks run. The watcher must not
// receive checks with an unchanged result.
func TestWatchingEndpointsIsQuiet(t *testing.T) {
	server(t, "127.47.1.1:9001", "one")
	server(t, "127.47.1.1:9002", "two")
	n := startNode(t, watched)
	wait.For(t, 20*time.Second, "both to be checked", func() bool { h := n.status().Health; return h.Unknown == 0 && h.Down == 0 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var count atomic.Int32
	watching := make(chan error)
	go func() {
		watching <- n.client.Watch(ctx, "endpoints", func(json.RawMessage) error { count.Add(1); return nil })
	}()
	wait.For(t, 0, "the watcher to receive the endpoints", func() bool { return count.Load() > 0 })
	checked := func() time.Time {
		all := n.list()
		if all[0].Check == nil {
			t.Fatal(all)
		}
		return all[0].Check.Last
	}
	first := checked()
	wait.For(t, 20*time.Second, "some more checks", func() bool { return checked().Sub(first) > 3*time.Second })
	cancel()
	<-watching
	if n := count.Load(); n != 1 {
		t.Errorf("calls of the watcher = %d, want 1", n)
	}
}

// TestCheckNow runs checks manually. The answer must show the exchanged messages, the endpoint's
// verdict must not change, and the reason why a check is impossible must be explained.
func TestCheckNow(t *testing.T) {
	server(t, "127.47.1.1:9001", "one")
	n := startNode(t, watched+`
[services.plain]
vips = ["127.47.0.2"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.47.1.1", port = 9001 }]
[services.dns]
vips = ["127.47.0.3"]
ports = [{ name = "u", port = 53, protocol = "udp" }, { name = "t", port = 53 }]
endpoints = [{ address = "127.47.1.1" }]
health = { type = "tcp", port = 9001 }
[services.log]
vips = ["127.47.0.4"]
ports = [{ port = 514, protocol = "udp" }]
endpoints = [{ address = "127.47.1.1" }]
health = { type = "tcp" }
`)
	for _, c := range []struct {
		service       balancer.Name
		address, want string
	}{
		{"web", "127.47.1.1:9001", "passed: connected"},
		{"web", "127.47.1.1:9002", "failed: connection refused: nothing listens there"},
		{"dns", "127.47.1.1", "passed: connected"},
		{"web", "127.47.1.1", "127.47.1.1 is checked at several ports: name one of these: 127.47.1.1:9001, 127.47.1.1:9002"},
		{"web", "127.47.1.9", "service web has no endpoint 127.47.1.9; it has 127.47.1.1:9001, 127.47.1.1:9002"},
		{"wep", "127.47.1.1", `there is no service "wep"; did you mean web?`},
		{"plain", "127.47.1.1", `service plain has no health check; add a check, for example health = { type = "tcp" }`},
		{"log", "127.47.1.1", "a tcp check can't test the ports of service log: set health.port to a port that it can test"},
		{"web", "here", `"here" is not an endpoint's ADDRESS or ADDRESS:PORT, such as 192.168.1.11, 192.168.1.11:8080 or [fd00::1]:8080`},
	} {
		if got := n.checkNow(c.service, c.address); got != c.want {
			t.Errorf("check of %s %s = %s, want %s", c.service, c.address, got, c.want)
		}
	}
}

// TestRefusedCalls sends calls that the API must reject. Each answer must be an error that states
// the reason.
func TestRefusedCalls(t *testing.T) {
	n := startNode(t, watched)
	ctx, q, yes, wrong := t.Context(), api.OverrideRequest{Service: "web", Address: "127.47.1.1:9001"}, true, 70000
	override := func(edit func(*api.OverrideRequest)) error {
		q := q
		edit(&q)
		_, err := n.client.Override(ctx, q)
		return err
	}
	_, live := n.client.Explain(ctx, netip.MustParseAddrPort("127.0.0.1:1"), balancer.Key{Addr: netip.MustParseAddr("127.47.0.1"), Port: 1, Proto: balancer.TCP}, true)
	_, all := n.client.Kill(ctx, dataplane.ConnectionQuery{}, "")
	_, absent := n.client.Kill(ctx, dataplane.ConnectionQuery{Service: "wep"}, "")
	for want, err := range map[string]error{
		"127.47.0.1:1/tcp is not a TCP port of a service, and --live connects only to TCP ports of services":  live,
		"vipd does not end all of this node's connections at once: name a service, client, endpoint or state": all,
		`there is no service "wep"; did you mean web?`:                                                        absent,
		"vipd does not know GET /v1/nothing: vipctl and vipd might have different versions":                   n.client.Watch(ctx, "nothing", nil),
		`there are no events of kind "nothing"`:                                                               n.client.Events(ctx, api.EventsQuery{Kind: "nothing"}, nil),
		"the request sets neither a weight nor a drain: set at least one":                                     override(func(*api.OverrideRequest) {}),
		"weight 70000 is out of range: 0 (no new connections) to 65535":                                       override(func(q *api.OverrideRequest) { q.Weight = &wrong }),
		"a duration can't be negative; leave it out, or set a duration above zero":                            override(func(q *api.OverrideRequest) { q.Draining, q.Timeout, q.Force = &yes, -1, true }),
		"name either a node, or a service and an address, not both":                                           override(func(q *api.OverrideRequest) { q.Draining, q.Node = &yes, "a" }),
		"name a service and the address of one of its endpoints, or a node":                                   override(func(q *api.OverrideRequest) { q.Draining, q.Address = &yes, "" }),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error = %v, want %s", err, want)
		}
	}
}

func (n *node) checkNow(service balancer.Name, address string) string {
	n.t.Helper()
	r, err := n.client.Check(n.t.Context(), api.CheckRequest{Service: service, Address: address})
	if err != nil {
		return err.Error()
	}
	if !strings.Contains(r.Exchange, "* ") || r.Took <= 0 || r.At == "" || r.Type != balancer.TCPHealth {
		n.t.Errorf("answer = %+v, want the exchanged messages, the duration and the address", r)
	}
	return r.Outcome + ": " + r.Text
}

// TestFailureIsRecordedOnce serves on a port that another program uses. vipd must retry, and must
// record one event when the failure starts and one when it ends.
func TestFailureIsRecordedOnce(t *testing.T) {
	other, err := net.Listen("tcp", "127.47.0.9:8080")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: t.TempDir()}
	n.write(`
[services.web]
vips = ["127.47.0.9", "127.47.0.10"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.47.1.1", port = 9001 }]
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	wait.For(t, 20*time.Second, "some tries", func() bool {
		_, metrics := n.get("/metrics")
		_, failures, _ := strings.Cut(metrics, "\nvipd_sync_failures_total ")
		return number(failures) > 2 && n.eventsOf(events.Problem) != ""
	})
	_ = other.Close()
	// Pauses between attempts double, up to a minute.
	wait.For(t, 2*time.Minute, "everything to be applied", func() bool { return strings.HasSuffix(n.eventsOf(events.Problem), "applied again") })
	all := n.events(api.EventsQuery{Kind: "problem"})
	if len(all) != 2 || !strings.Contains(all[0].Cause, "address already in use") || all[1].Lasted < time.Second {
		t.Errorf("problem events =\n%s\nwant a start event with the cause, and an end event", n.eventsOf(events.Problem))
	}
}

// TestDrainExpiresWhileStopped lets a manual drain expire while vipd is stopped. After the next
// start, vipd must record that the drain has ended.
func TestDrainExpiresWhileStopped(t *testing.T) {
	n := startNode(t, web)
	yes := true
	q := api.OverrideRequest{Service: "web", Address: "127.40.1.1:9001", Draining: &yes, Expires: 100 * time.Hour, By: "ana", Reason: "disks"}
	if _, err := n.client.Override(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	n.stop()
	kept := filepath.Join(n.dir, "state", "overrides.json")
	text, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	program.Save(t, kept, regexp.MustCompile(`"expires": "[^"]+"`).ReplaceAllString(string(text), `"expires": "2026-01-01T00:00:00Z"`))
	n.start()
	if got, want := n.eventsOf(events.Override), "web 127.40.1.1:9001 override has expired: said by "+asCaller(t, "ana")+": disks"; got != want {
		t.Errorf("drain events = %q, want %q", got, want)
	}
	if got := n.endpoints(); !strings.Contains(got, "9001:active") {
		t.Errorf("endpoints = %s, want the drained endpoint active", got)
	}
}

// asCaller returns the author that events record for a caller: the user's name, then name in
// parentheses.
func asCaller(t *testing.T, name string) string {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return u.Username + " (" + name + ")"
}
