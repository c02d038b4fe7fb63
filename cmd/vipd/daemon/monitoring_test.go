package daemon_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/test/program"
	"vipd/test/wait"
)

const monitoring = "../../../examples/monitoring/"

// prometheus is a Prometheus process that scrapes a node.
type prometheus struct {
	t       *testing.T
	address string
}

// startPrometheus runs Prometheus with the example's configuration and alerts. It scrapes every
// second, and alerts fire after a second.
func startPrometheus(t *testing.T, target string) *prometheus {
	for _, tool := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs Prometheus: Debian's package prometheus")
		}
	}
	dir := t.TempDir()
	rewrite := func(name string, edit func(string) string) {
		text, err := os.ReadFile(monitoring + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(edit(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	rewrite("prometheus.yml", func(s string) string {
		return strings.NewReplacer("15s", "1s", "127.0.0.1:9890", target).Replace(s)
	})
	rewrite("alerts.yml", func(s string) string { return regexp.MustCompile(`for: \w+`).ReplaceAllString(s, "for: 1s") })
	l, err := net.Listen("tcp", "127.88.2.1:0") // a free port on an address that no other test uses, because Prometheus does not report its port
	if err != nil {
		t.Fatal(err)
	}
	p := &prometheus{t, l.Addr().String()}
	_ = l.Close()
	output := &journaled{}
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address="+p.address, "--log.level=warn")
	cmd.Stderr = output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(output.lines(""))
		}
	})
	return p
}

// ask sends a request to Prometheus. It returns false if Prometheus does not answer or rejects the
// request.
func (p *prometheus) ask(path string, into any) bool {
	r, err := http.Get("http://" + p.address + "/api/v1/" + path)
	if err != nil {
		return false
	}
	defer func() { _ = r.Body.Close() }()
	answer := struct{ Data any }{into}
	return json.NewDecoder(r.Body).Decode(&answer) == nil && r.StatusCode == http.StatusOK
}

func (p *prometheus) has(expr string) bool {
	var data struct{ Result []any }
	return p.ask("query?query="+url.QueryEscape(expr), &data) && len(data.Result) > 0
}

// fires waits until the named alerts fire.
func (p *prometheus) fires(fired map[string]bool, names ...string) {
	p.t.Helper()
	for _, name := range names {
		wait.For(p.t, 0, "the alert "+name, func() bool { return p.has(fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing"}`, name)) })
		fired[name] = true
	}
}

// TestMonitoring scrapes a node with Prometheus and the example's alerts. Each alert must fire
// after the test causes its fault, or in the example's own test. Each expression in the dashboard
// must have a value.
func TestMonitoring(t *testing.T) {
	server(t, "127.58.1.1:9001", "one")
	healthy, err := net.Listen("tcp", "127.58.1.2:9001")
	if err != nil {
		t.Fatal(err)
	}
	const services = pair + `
[services.sick]
vips = ["127.58.0.2"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.58.1.2", port = 9001 }]
health = { type = "tcp", interval = "1s", timeout = "900ms", fall = 1, panic_threshold = 50 }
[services.refusing]
vips = ["127.58.0.5"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.58.1.3", port = 9001 }]
`
	n, _ := startPassive(t, services, time.Hour)
	p := startPrometheus(t, n.daemon.Web().String())
	wait.For(t, 0, "two scrapes", func() bool { return p.has(`count_over_time(vipd_mode[1m]) >= 2`) })

	_ = healthy.Close()
	taken, err := net.Listen("tcp", "127.58.0.3:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	text := services + `
[services.empty]
vips = ["127.58.0.4"]
ports = [{ port = 8080 }]
endpoints = []
[services.blocked]
vips = ["127.58.0.3"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.58.1.1", port = 9001 }]
`
	n.write(text)
	wait.For(t, 0, "an ejection", func() bool {
		ask("127.58.0.1:8080")
		ask("127.58.0.5:8080")
		return n.metric(`vipd_ejections_total{service="web"}`) == "1"
	})
	fired := map[string]bool{}
	p.fires(fired, "VipdNoEndpoint", "VipdPanic", "VipdEndpointDown", "VipdEndpointEjected", "VipdConnectFailures", "VipdBehind", "VipdSyncFails",
		"VipdProblems")
	yes := true
	if _, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.58.1.1:9002", Draining: &yes}); err != nil {
		t.Fatal(err)
	}
	p.dashboard()
	_, metrics := n.get("/metrics")
	check := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	check.Stdin = strings.NewReader(metrics)
	if output, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: error = %v, want none\n%s", err, output)
	}

	wrong := strings.Replace(header, `mode = "userspace"`, `mode = "ipvs"`, 1) + strings.Replace(text, "endpoints = []", "endpoints = 7", 1)
	program.Save(t, n.file(), wrong)
	p.fires(fired, "VipdConfigurationRefused", "VipdModeFallback")
	if err := os.Rename(n.file(), n.file()+".away"); err != nil {
		t.Fatal(err)
	}
	p.fires(fired, "VipdStoreUnreadable")
	n.stop()
	p.fires(fired, "VipdAway")

	cmd := exec.CommandContext(t.Context(), "promtool", "test", "rules", "alerts_test.yml")
	cmd.Dir = monitoring
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: error = %v, want none\n%s", err, output)
	}
	maps.Copy(fired, named(t, "alerts_test.yml", `alertname: (\w+)`))
	if all := named(t, "alerts.yml", `alert: (\w+)`); !maps.Equal(all, fired) {
		t.Errorf("alerts that fired = %v, want %v", slices.Sorted(maps.Keys(fired)), slices.Sorted(maps.Keys(all)))
	}
}

// named returns the matches of a pattern in one of the example's files.
func named(t *testing.T, file, pattern string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(monitoring + file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
		found[string(m[1])] = true
	}
	return found
}

// dashboard evaluates the expressions in all panels, as Grafana does.
func (p *prometheus) dashboard() {
	p.t.Helper()
	text, err := os.ReadFile(monitoring + "dashboard.json")
	if err != nil {
		p.t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		p.t.Fatal(err)
	}
	exprs := 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expr := strings.NewReplacer("$instance", ".*", "$service", ".*", "$__rate_interval", "5m").Replace(target.Expr)
			wait.For(p.t, 0, panel.Title+": "+expr, func() bool { return p.has(expr) })
			exprs++
		}
	}
	if exprs < 20 {
		p.t.Errorf("expressions in the dashboard = %d, want at least 20", exprs)
	}
}
