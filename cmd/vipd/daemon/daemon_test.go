package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/cmd/vipd/daemon"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestMain runs the tests with their own addresses.
func TestMain(m *testing.M) { lab.Main(orderly{m}) }

// orderly runs the tests, and fails if a goroutine is left. So every test must stop its daemons.
type orderly struct{ *testing.M }

func (o orderly) Run() (code int) {
	goleak.VerifyTestMain(o.M, goleak.Cleanup(func(found int) { code = found }),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
	return code
}

// node is a daemon in this process, with a configuration in its own directory.
type node struct {
	t      testing.TB
	dir    string
	client *api.Client
	daemon *daemon.Daemon
	modes  []modes.Mode // nil means noRoot()
	log    slog.Handler // nil means that the log is discarded
	// replace makes launch pass --replace.
	replace bool
	// ejection replaces the default rules for ejections, unless it is zero.
	ejection health.EjectionRules
	watch    time.Duration // 0 means the daemon's own interval
	stop     func()        // stops the daemon and waits until it has stopped
	// end stops or kills the program that spawn has started.
	end func(kill bool)
}

// noRoot returns the mode that needs no privilege and does not change the host's rules. Without
// root privileges, tests run on the host itself.
func noRoot() []modes.Mode {
	m, _ := modes.Find(config.UserspaceMode)
	return []modes.Mode{m}
}

// header is the first part of a configuration that needs no privilege.
const header = `mode = "userspace"
node = "n1"
state_dir = "state"
run_dir = "run"
[api]
socket = "run/vipd.sock"
http = "127.0.0.1:0"
[userspace]
intercept = "bind"
`

func startNode(t *testing.T, services string) *node {
	n := &node{t: t, dir: t.TempDir()}
	n.write(services)
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *node) file() string { return filepath.Join(n.dir, "vipd.toml") }

func (n *node) socket() string { return filepath.Join(n.dir, "run/vipd.sock") }

func (n *node) write(services string) {
	n.t.Helper()
	program.Save(n.t, n.file(), header+services)
}

// written waits until no process has the configuration file open for writing. A forked process
// holds the file until it executes its program.
func (n *node) written() {
	n.t.Helper()
	wait.For(n.t, 10*time.Second, "the file to be closed", func() bool {
		r, err := n.client.Reload(n.t.Context(), "")
		return err == nil && !slices.ContainsFunc(r.Problems, func(p balancer.Problem) bool { return strings.Contains(p.Text, "is being written") })
	})
}

func (n *node) start() {
	n.t.Helper()
	n.launch()
	defer func() {
		if n.t.Failed() {
			n.t.Logf("its status: %+v", n.status())
		}
	}()
	wait.For(n.t, 10*time.Second, "the daemon to be ready", func() bool { return n.status().Ready })
}

func (n *node) launch() {
	n.t.Helper()
	if testing.Short() {
		n.t.Skip("starts a daemon, which takes too long for -short")
	}
	if n.modes == nil {
		n.modes = noRoot()
	}
	if n.log == nil {
		n.log = slog.DiscardHandler
	}
	d, err := n.make(n.replace)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	n.daemon, n.client = d, api.NewClient(n.socket())
	n.stop = func() {
		n.stop = func() {}
		n.client.Close()
		cancel()
		if err := <-ended; err != nil {
			n.t.Error("Run returned", err)
		}
	}
}

func (n *node) make(replace bool) (*daemon.Daemon, error) {
	return daemon.New(daemon.Options{
		ConfigFile: n.file(), Log: slog.New(n.log), Version: "test", Modes: n.modes, Replace: replace, Ejection: n.ejection,
		WatchInterval: n.watch,
	})
}

// retry retries a request until vipd answers, because a busy machine may delay it.
func (n *node) retry(what string, ask func() error) {
	n.t.Helper()
	lab.Eventually(n.t, 0, what, ask)
}

func (n *node) status() (s api.Status) {
	n.t.Helper()
	n.retry("status", func() (err error) { s, err = n.client.Status(n.t.Context()); return err })
	return s
}

// problems returns the problems in the status, one on each line.
func (n *node) problems() string {
	var lines []string
	for _, p := range n.status().Problems {
		lines = append(lines, strings.ReplaceAll(p.String(), n.dir+"/", ""))
	}
	return strings.Join(lines, "\n")
}

func (n *node) list() (all []api.Endpoint) {
	n.t.Helper()
	n.retry("endpoints", func() (err error) { all, err = n.client.Endpoints(n.t.Context()); return err })
	return all
}

func (n *node) endpoints() string {
	n.t.Helper()
	var words []string
	for _, e := range n.list() {
		words = append(words, fmt.Sprintf("%s:%s/%d", e.Address, e.State, e.Weight))
	}
	return strings.Join(words, " ")
}

// server starts a server that answers each connection with name until the test ends.
func server(t *testing.T, address, name string) {
	t.Helper()
	serverUntil(t, address, name)
}

// ask connects to address, and returns the answer of whichever server gets the connection.
func ask(address string) string {
	c, err := net.DialTimeout("tcp", address, wait.Patience)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	text, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

const web = `
[services.web]
vips = ["127.40.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.40.1.1", port = 9001, node = "a" }, { address = "127.40.1.1", port = 9002, node = "b" }]
`

func TestServesAndFollowsTheFile(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "two")
	n := startNode(t, web)
	got := []string{ask("127.40.0.1:8080"), ask("127.40.0.1:8080")}
	slices.Sort(got)
	if !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("two requests: answers = %q, want \"one\" and \"two\"", got)
	}
	if p := n.problems(); p != "" {
		t.Error("problems:", p)
	}
	n.write(strings.Replace(web, `9001, node = "a"`, `9001, draining = true`, 1))
	wait.For(t, 5*time.Second, "the changed file", func() bool {
		return n.endpoints() == "127.40.1.1:9001:draining/0 127.40.1.1:9002:active/1"
	})
	wait.For(t, 5*time.Second, "the change to be applied", func() bool { return n.status().Sync.Pending == 0 })
	for range 4 {
		if got := ask("127.40.0.1:8080"); got != "two" {
			t.Errorf("with one endpoint draining: answer = %q, want \"two\"", got)
		}
	}
	n.stop()
}

// TestBrokenFile writes files that contain mistakes. Traffic must continue, and the problem must
// name the line.
func TestBrokenFile(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "one")
	n := startNode(t, web)
	lines := strings.Count(header, "\n")
	for _, c := range []struct{ name, services, want string }{
		{"syntax", "\n[services.web\n", fmt.Sprintf("vipd.toml:%d: ", lines+2)},
		{"field", strings.Replace(web, "port = 8080", "port = 80800", 1), fmt.Sprintf("vipd.toml:%d: service web: ports[0].port: ", lines+4)},
		{"unknown", strings.Replace(web, "vips", "vip", 1), fmt.Sprintf("vipd.toml:%d: service web: vip: ", lines+3)},
		{"daemon's own", "\n[sync]\nmin_intervall = \"1s\"\n" + web, fmt.Sprintf("vipd.toml:%d: sync.min_intervall: ", lines+3)},
	} {
		n.write(c.services)
		wait.For(t, 5*time.Second, c.name+": a problem", func() bool { return strings.Contains(n.problems(), c.want) })
		if got := ask("127.40.0.1:8080"); got != "one" {
			t.Errorf("%s: answer = %q, want \"one\"", c.name, got)
		}
		r, err := n.client.Reload(t.Context(), "")
		if err != nil || len(r.Problems) == 0 {
			t.Errorf("reload of %s: problems = %v, error = %v; want one problem at the mistake", c.name, r.Problems, err)
		}
	}
	n.write(web)
	wait.For(t, 5*time.Second, "the fixed file to have no problems", func() bool { return n.problems() == "" })
	// The first mistake affects the whole file, so neither the configuration nor the services can
	// be read.
	first, _, _ := strings.Cut(n.eventsOf(events.Reload), "\n")
	if !strings.HasPrefix(first, "reloaded: 1 service (= web kept because of an error), 1 problem: a file has changed") {
		t.Errorf("first reload event = %s, want a message that \"web\" was kept", first)
	}
}

func TestOverridesSurviveRestart(t *testing.T) {
	n := startNode(t, web)
	yes, no, five := true, false, 5
	drain := func(q api.OverrideRequest) error {
		_, err := n.client.Override(t.Context(), q)
		return err
	}
	for _, c := range []struct {
		q    api.OverrideRequest
		want string
	}{
		{api.OverrideRequest{Service: "web", Address: "127.40.1.1:9003", Draining: &yes}, "service web has no endpoint 127.40.1.1:9003; it has 127.40.1.1:9001, 127.40.1.1:9002"},
		{api.OverrideRequest{Service: "wep", Address: "127.40.1.1", Draining: &yes}, `there is no service "wep"; did you mean web?`},
		{
			api.OverrideRequest{Service: "web", Address: "127.40.1.1", Draining: &yes},
			"no usable endpoint would remain for service web (port 8080/tcp), so new connections would fail: nothing was changed; --force changes it anyway",
		},
		{api.OverrideRequest{Service: "web", Address: "127.40.1.1"}, "the request sets neither a weight nor a drain: set at least one"},
		{api.OverrideRequest{Node: "zz", Draining: &yes}, `no endpoint is on node "zz": an endpoint's field node sets its node`},
	} {
		if err := drain(c.q); err == nil || err.Error() != c.want {
			t.Errorf("error = %v, want %s", err, c.want)
		}
	}
	for _, q := range []api.OverrideRequest{
		{Node: "a", Draining: &yes, Reason: "kernel update"},
		{Service: "web", Address: "127.40.1.1:9002", Weight: &five},
	} {
		if err := drain(q); err != nil {
			t.Fatal(err)
		}
	}
	want := "127.40.1.1:9001:draining/0 127.40.1.1:9002:active/5"
	if got := n.endpoints(); got != want {
		t.Errorf("endpoints = %s, want %s", got, want)
	}
	n.stop()
	n.start()
	if got := n.endpoints(); got != want {
		t.Errorf("after a restart: endpoints = %s, want %s", got, want)
	}
	if err := drain(api.OverrideRequest{Node: "a", Draining: &no}); err != nil {
		t.Fatal(err)
	}
	if got := n.endpoints(); got != "127.40.1.1:9001:active/1 127.40.1.1:9002:active/5" {
		t.Errorf("after undrain: endpoints = %s, want both endpoints active", got)
	}
	one := 1 // equals the definition, so nothing is overridden
	if err := drain(api.OverrideRequest{Service: "web", Address: "127.40.1.1", Weight: &one}); err != nil {
		t.Fatal(err)
	}
	if err := drain(api.OverrideRequest{Service: "web", Address: "127.40.1.1:9002", Weight: &one}); err != nil {
		t.Fatal(err)
	}
	if r, err := n.client.Overrides(t.Context()); err != nil || len(r.Targets) != 0 {
		t.Errorf("overrides = %+v, %v, want none", r, err)
	}
	// A change that can't be saved must be refused.
	before, state := n.endpoints(), filepath.Join(n.dir, "state")
	if err := os.Rename(state, state+".away"); err != nil {
		t.Fatal(err)
	}
	if err := drain(api.OverrideRequest{Node: "a", Draining: &yes}); err == nil || !strings.HasPrefix(err.Error(), "nothing was changed, because the change could not be saved: ") {
		t.Errorf("drain without state_dir: error = %v, want a refusal", err)
	}
	if got := n.endpoints(); got != before {
		t.Errorf("without state_dir: endpoints = %s, want %s", got, before)
	}
	const refused = "drains and weights are refused: saving overrides.json in state_dir"
	wait.For(t, 5*time.Second, "the problem that nothing can be saved", func() bool { return strings.Contains(n.problems(), refused) })
	if err := os.Rename(state+".away", state); err != nil {
		t.Fatal(err)
	}
	n.write(strings.Replace(web, `node = "a"`, `draining = true`, 1))
	wait.For(t, 5*time.Second, "the changed file", func() bool { return strings.Contains(n.endpoints(), "9001:draining") })
	if err := drain(api.OverrideRequest{Service: "web", Address: "127.40.1.1:9001", Draining: &no}); err != nil {
		t.Fatal(err)
	}
	if got := n.endpoints(); got != "127.40.1.1:9001:active/1 127.40.1.1:9002:active/1" {
		t.Errorf("after undrain of a defined drain: endpoints = %s, want both endpoints active", got)
	}
	wait.For(t, 5*time.Second, "that problem to end", func() bool { return !strings.Contains(n.problems(), refused) })
}

func TestWatch(t *testing.T) {
	n := startNode(t, web)
	answers := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- n.client.Watch(ctx, "services", func(m json.RawMessage) error { answers <- string(m); return nil })
	}()
	if first := <-answers; !strings.Contains(first, `"web"`) {
		t.Error("first answer has no service \"web\": ", first)
	}
	n.write(web + strings.NewReplacer("services.web", "services.api", "port = 8080", "port = 8081").Replace(web))
	for next := range answers {
		if strings.Contains(next, `"api"`) {
			break
		}
	}
	cancel()
	<-ended
}

func (n *node) get(path string) (int, string) {
	n.t.Helper()
	r, err := http.Get("http://" + n.daemon.Web().String() + path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

func TestMetricsAndHealth(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "two")
	n := startNode(t, web)
	for range 10 {
		ask("127.40.0.1:8080")
	}
	text := ""
	wait.For(t, 0, "the connections to be counted", func() bool { // while counters are being read, vipd shows the previous counts
		_, text = n.get("/metrics")
		return strings.Contains(text, `vipd_service_bytes_total{direction="out",port="",service="web"} 30`)
	})
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Error("promlint:", problems, err)
	}
	for _, line := range []string{
		`vipd_mode{mode="userspace"} 1`, `vipd_mode_fallback 0`, `vipd_services 1`, `vipd_frontends 1`, `vipd_store_connected 1`,
		`vipd_endpoints{service="web",state="active"} 2`, `vipd_service_connections_total{port="",service="web"} 10`,
		`vipd_endpoint_connections_total{endpoint="127.40.1.1:9001",service="web"} 5`, `vipd_sync_pending_changes 0`,
		`vipd_endpoint_up{endpoint="127.40.1.1:9002",service="web"} 1`, `vipd_userspace_dial_retries_total 0`,
		`vipd_service_bytes_total{direction="out",port="",service="web"} 30`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("metrics have no line %q; metrics =\n%s", line, text)
		}
	}
	for _, name := range []string{
		"vipd_build_info", "vipd_sync_duration_seconds", "vipd_sync_last_success_timestamp_seconds", "vipd_sync_failures_total",
		"vipd_sync_changes_total", "vipd_programming_duration_seconds", "vipd_drift_repairs_total", "vipd_store_events_total",
		"vipd_config_reload_failures_total", "vipd_endpoint_active_connections", "go_goroutines", "process_open_fds",
	} {
		if !strings.Contains(text, "# TYPE "+name+" ") {
			t.Errorf("series %s is missing", name)
		}
	}
	const programmed = "\nvipd_programming_duration_seconds_count 1\n"
	yes := true
	if _, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.40.1.1:9001", Draining: &yes}); err != nil {
		t.Fatal(err)
	}
	if _, after := n.get("/metrics"); !strings.Contains(text, programmed) || !strings.Contains(after, programmed) {
		t.Errorf("after a manual change: metrics =\n%s\nwant unchanged programming times", after)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := n.get(path); code != 200 || !strings.Contains(body, `"ok":true`) {
			t.Errorf("%s: answer = %d %s, want 200 and ok", path, code, body)
		}
	}
}

// TestMetricOfNoActiveEndpoints serves a service without an active endpoint. Its series for active
// endpoints must exist with the value 0, so alerts can use it. States other than active must have
// no series if no endpoint is in that state.
func TestMetricOfNoActiveEndpoints(t *testing.T) {
	n := startNode(t, strings.ReplaceAll(web, `address = "127.40.1.1"`, `weight = 0, address = "127.40.1.1"`)+`
[services.empty]
vips = ["127.40.0.2"]
ports = [{ port = 8080 }]
endpoints = []
`)
	_, text := n.get("/metrics")
	for _, line := range []string{
		`vipd_endpoints{service="web",state="active"} 0`, `vipd_endpoints{service="empty",state="active"} 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("metrics have no line %q; metrics =\n%s", line, text)
		}
	}
	if strings.Contains(text, `service="empty",state="draining"`) {
		t.Error("metrics have a series for a state without endpoints, want none")
	}
}

// TestSocketInUse starts a second daemon with a running daemon's socket, as may happen in another
// network namespace. The second daemon must refuse to start, and the first must still answer at the
// socket.
func TestSocketInUse(t *testing.T) {
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "vipd.toml"), filepath.Join(dir, "other.sock")
	other, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	program.Save(t, file, strings.Replace(header, "run/vipd.sock", socket, 1))
	_, err = daemon.New(daemon.Options{ConfigFile: file, Log: slog.New(slog.DiscardHandler), Modes: noRoot()})
	if err == nil || !strings.Contains(err.Error(), "another vipd answers at api.socket") {
		t.Errorf("second daemon on the same socket: error = %v, want an error with api.socket", err)
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatalf("first daemon's socket: error = %v, want none", err)
	}
	_ = c.Close()
}

// TestWebInUse starts vipd while another program listens on api.http. The service must be served,
// and the status must report the port. When the other program exits, api.http must answer.
func TestWebInUse(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	n := &node{t: t, dir: t.TempDir()}
	program.Save(t, n.file(), strings.Replace(header, `http = "127.0.0.1:0"`, fmt.Sprintf("http = %q", other.Addr()), 1)+web)
	n.start()
	t.Cleanup(func() { n.stop() })
	want := "vipd.toml: api.http: metrics, health and the status page are not served: listen tcp " + other.Addr().String()
	if got := n.problems(); !strings.Contains(got, want) {
		t.Errorf("problems = %q, want %q", got, want)
	}
	program.Unshared(func() { _ = other.Close() })
	wait.For(t, wait.Patience, "metrics", func() bool { return n.daemon.Web() != nil })
	if _, text := n.get("/metrics"); !strings.Contains(text, "vipd_") {
		t.Errorf("metrics = %.200s, want vipd's metrics", text)
	}
	if got := n.problems(); strings.Contains(got, "api.http") {
		t.Errorf("problems = %q, want none about api.http", got)
	}
}

// TestWebWithoutAddress starts vipd with an api.http address that the host does not have. The
// service must be served, and the status must report the address.
func TestWebWithoutAddress(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	program.Save(t, n.file(), strings.Replace(header, `http = "127.0.0.1:0"`, `http = "192.0.2.1:9890"`, 1)+web)
	n.start()
	t.Cleanup(func() { n.stop() })
	if got, want := n.problems(), "listen tcp 192.0.2.1:9890: bind: cannot assign requested address"; !strings.Contains(got, want) {
		t.Errorf("problems = %q, want %q", got, want)
	}
}

// TestProfiles requests profiles from the socket. The answer must contain stack traces, and an
// unknown profile must be refused.
func TestProfiles(t *testing.T) {
	n := startNode(t, web)
	if text, err := n.client.Profile(t.Context(), "goroutine?debug=2"); err != nil || !strings.Contains(string(text), "daemon.(*Daemon).Run") {
		t.Errorf("goroutines = %.200s, error = %v, want the daemon's stack traces", text, err)
	}
	if text, err := n.client.Profile(t.Context(), "frob"); err == nil {
		t.Errorf("unknown profile = %.200s, want an error", text)
	}
}

// TestStoreAppearsLate starts a daemon before the directory with its services exists, as happens
// with a late mount. Until the directory exists, the status must show why no services are served.
// Afterwards, the services must be served.
func TestStoreAppearsLate(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	n.write("[store]\npath = \"services\"\n")
	n.launch()
	t.Cleanup(func() { n.stop() })
	wait.For(t, 5*time.Second, "the reason why it is not ready", func() bool {
		code, body := n.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "no services from it are served yet: ")
	})
	if s := n.status().Store; s.Error == "" || s.EverRead {
		t.Errorf("store: status = %+v, want the reason why it can't be read", s)
	}
	folder := filepath.Join(n.dir, "services")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "web.toml"), []byte(web), 0o644); err != nil {
		t.Fatal(err)
	}
	wait.For(t, 10*time.Second, "the services of the folder", func() bool { s := n.status(); return s.Ready && s.Services == 1 && s.Store.EverRead })
	if got, want := n.status().Store.Place, n.file()+" and "+folder; got != want {
		t.Errorf("Store.Place = %q, want %q", got, want)
	}
	for _, exists := range []bool{false, true} {
		from, to := folder, folder+".away"
		if exists {
			from, to = to, from
		}
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
		wait.For(t, 10*time.Second, "the status to follow the folder", func() bool { return n.status().Store.Connected == exists })
	}
	story := strings.Split(n.eventsOf(events.Store), "\n")
	for i, want := range []string{
		"the services' files can't be read; none of their services is served yet: ", "the services' files can be read again",
		"the services' files can't be read; serving their last state: ", "the services' files can be read again",
	} {
		if len(story) != 4 || !strings.HasPrefix(story[i], want) {
			t.Fatalf("store events in the journal = %q, want %q", story, want)
		}
	}
}

// TestExternalAddressMissing starts vipd while another program manages the addresses but has not
// added them. There must be no problem, and only services on loopback addresses may be served.
func TestExternalAddressMissing(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "one")
	n := startNode(t, "[addresses]\nbind = false\n"+strings.Replace(web, `["127.40.0.1"]`, `["127.40.0.1", "198.51.100.7"]`, 1))
	s := n.status()
	if s.Frontends != 1 || len(s.Problems) > 0 || s.Sync.Pending+s.Sync.Failing > 0 || ask("127.40.0.1:8080") != "one" {
		t.Errorf("status = %+v, want one frontend and no problem", s)
	}
	want := api.Address{Address: "198.51.100.7", Held: "none", Note: "inactive until it is added to this host (addresses.bind is false)"}
	if !slices.Contains(s.Addresses, want) {
		t.Errorf("addresses = %+v, want a list that contains %+v", s.Addresses, want)
	}
}

// TestRemovesRemainsOfOtherModes starts vipd after another mode was in use. Kernel state of the
// other modes must be removed once the new mode serves, and the mode in use must keep its objects.
func TestRemovesRemainsOfOtherModes(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "one")
	n := &node{t: t, dir: t.TempDir()}
	n.write(web)
	asked := make(chan string, 10)
	left := true
	cleanup := func(name string) func(context.Context, config.Config, bool) ([]string, error) {
		return func(_ context.Context, _ config.Config, dry bool) ([]string, error) {
			asked <- fmt.Sprintf("%s, dry %v, while %q answers", name, dry, ask("127.40.0.1:8080"))
			if !left {
				return nil, nil
			}
			left = dry
			return []string{"delete a chain"}, nil
		}
	}
	in := noRoot()[0]
	in.Cleanup = cleanup("userspace")
	n.modes = []modes.Mode{{Name: config.IPTablesMode, Cleanup: cleanup("iptables")}, in}
	n.start()
	for _, want := range []string{`iptables, dry true, while "one" answers`, `iptables, dry false, while "one" answers`} {
		select {
		case got := <-asked:
			if got != want {
				t.Errorf("cleanup = %s, want %s", got, want)
			}
		case <-time.After(wait.Patience):
			t.Fatalf("removals within %s = none, want the removal of %s", wait.Patience, want)
		}
	}
	n.stop()
	n.start()
	if got, want := <-asked, `iptables, dry true, while "one" answers`; got != want {
		t.Errorf("cleanup = %s, want %s", got, want)
	}
	n.stop()
	if len(asked) > 0 {
		t.Errorf("after the last removal: cleanup = %s, want none", <-asked)
	}
}

func TestModeFallsBack(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	text := strings.Replace(header, `mode = "userspace"`, `mode = "ipvs"`, 1) + web
	program.Save(t, n.file(), text)
	n.start()
	s := n.status()
	if s.Mode.InUse != "userspace" || s.Mode.Wanted != "ipvs" || !s.Mode.Fallback || !strings.Contains(n.problems(), "mode: userspace mode serves instead of ipvs") {
		t.Errorf("mode = %+v, want a fallback to userspace; problems: %s", s.Mode, n.problems())
	}
	if _, text := n.get("/metrics"); !strings.Contains(text, "vipd_mode_fallback 1\n") {
		t.Error("metrics have no line vipd_mode_fallback 1")
	}
	n.stop()
	program.Save(t, n.file(), "strict_mode = true\n"+text)
	_, err := daemon.New(daemon.Options{ConfigFile: n.file(), Log: slog.New(slog.DiscardHandler), Modes: noRoot()})
	if err == nil || !strings.Contains(err.Error(), "strict_mode") {
		t.Errorf("with strict_mode: error = %v, want an error that names strict_mode", err)
	}
}

// TestContestedAddress adds a second service with the address of an existing service. The first
// service must keep the address, even after a restart. The second service's problem must name the
// line with its ports.
func TestContestedAddress(t *testing.T) {
	n := startNode(t, web)
	other := strings.Replace(web, "services.web", "services.app", 1)
	n.write(web + other)
	holder := func() string {
		var all []api.Frontend
		n.retry("frontends", func() (err error) { all, err = n.client.Frontends(t.Context()); return err })
		if len(all) != 1 {
			t.Fatal(all)
		}
		return string(all[0].Service)
	}
	wait.For(t, 5*time.Second, "the conflict", func() bool {
		return strings.Contains(n.problems(), "service app: ports[0].port: 127.40.0.1:8080/tcp is held by service web")
	})
	if h := holder(); h != "web" {
		t.Error("holder of the address is not \"web\": ", h)
	}
	r, err := n.client.Reload(t.Context(), "")
	if err != nil || len(r.Problems) != 1 {
		t.Fatalf("reload: problems = %v, error = %v; want one problem for the new service", r.Problems, err)
	}
	at := r.Problems[0].Origin
	text, err := os.ReadFile(at.File)
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(text), other)
	if want := strings.Count(before, "\n") + 4; at.Line != want {
		t.Errorf("line of the problem = %d, want %d, the line with the service's ports:\n%s", at.Line, want, text)
	}
	n.stop()
	n.start()
	if h := holder(); h != "web" {
		t.Error("after a restart, holder of the address is not \"web\":", h)
	}
}
