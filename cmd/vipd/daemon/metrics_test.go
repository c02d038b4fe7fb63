package daemon_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

// metric returns a metric's line with its labels but without its value, or "" if it is missing.
func (n *node) metric(series string) string {
	_, text := n.get("/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// TestCountersOfFailures causes failed connects, retries, ejections, drains and panics. Each must
// be counted when it starts.
func TestCountersOfFailures(t *testing.T) {
	server(t, "127.58.1.1:9001", "one")
	n, _ := startPassive(t, pair+`
[services.sick]
vips = ["127.58.0.2"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.58.1.2", port = 9001 }]
health = { type = "tcp", interval = "100ms", timeout = "90ms", fall = 1, panic_threshold = 50 }
`, 60e9)
	n.askUntil("127.58.0.1:8080", "127.58.1.2:9001:active/1 127.58.1.1:9001:active/1 127.58.1.1:9002:ejected/0")
	yes := true
	if _, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.58.1.1:9002", Draining: &yes}); err != nil {
		t.Fatal(err)
	}
	// An ejection needs two failures, and more may follow before it is applied. Each failure has a
	// retry.
	wait.For(t, 0, "failures to be counted alike", func() bool {
		endpoint := n.metric(`vipd_endpoint_connect_failures_total{endpoint="127.58.1.1:9002",service="web"}`)
		return number(endpoint) >= 2 && endpoint == n.metric(`vipd_service_connect_failures_total{port="",service="web"}`) &&
			endpoint == n.metric("vipd_userspace_dial_retries_total")
	})
	for series, want := range map[string]string{
		`vipd_endpoint_connect_failures_total{endpoint="127.58.1.1:9001",service="web"}`: "0",
		`vipd_ejections_total{service="web"}`:                                            "1",
		`vipd_drains_total{service="web"}`:                                               "1",
		`vipd_panics_total{service="sick"}`:                                              "1",
		`vipd_problems{field="health.panic_threshold",service="sick"}`:                   "1",
		`vipd_endpoint_connections_total{endpoint="127.58.1.1:9002",service="web"}`:      "0",
	} {
		wait.For(t, 0, series+" "+want, func() bool { return n.metric(series) == want })
	}
}

// TestProfilesAreForTheSocketAlone requests Go's profiles and variables. Only the socket may show
// them, because everyone may read api.http.
func TestProfilesAreForTheSocketAlone(t *testing.T) {
	n := startNode(t, web)
	text, err := n.client.Profile(t.Context(), "goroutine?debug=2")
	if err != nil || !strings.Contains(string(text), "daemon.(*Daemon).Run") {
		t.Errorf("profile on the socket: error = %v, want none: %.200s", err, text)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=2", "/debug/pprof/profile", "/debug/vars"} {
		if code, _ := n.get(path); code != http.StatusNotFound {
			t.Errorf("%s on api.http: status = %d, want 404", path, code)
		}
	}
}

// TestNoSeriesOfEndpoints sets per_endpoint = false. Series for services must exist, but no series
// may name an endpoint.
func TestNoSeriesOfEndpoints(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	n := startNode(t, "[metrics]\nper_endpoint = false\n"+web)
	ask("127.40.0.1:8080")
	wait.For(t, 0, "the connection to be counted", func() bool { return n.connections() == 1 })
	_, text := n.get("/metrics")
	if strings.Contains(text, "endpoint=") || !strings.Contains(text, `vipd_service_connections_total{port="",service="web"} 1`) ||
		!strings.Contains(text, `vipd_endpoints{service="web",state="active"} 2`) {
		t.Error(text)
	}
}

func large(services int) string {
	var text strings.Builder
	for i := range services {
		fmt.Fprintf(&text, "[services.s%d]\nvips = [\"127.70.%d.%d\"]\nports = [{ port = 8080 }]\nendpoints = [", i, i>>8, i&255)
		for j := range 10 {
			fmt.Fprintf(&text, "{ address = \"127.90.%d.%d\", port = %d },", i>>8, i&255, 9000+j)
		}
		text.WriteString("]\n")
	}
	return text.String()
}

// BenchmarkScrape scrapes many services with ten endpoints each, without any connections.
func BenchmarkScrape(b *testing.B) {
	for _, perEndpoint := range []bool{true, false} {
		for _, services := range []int{100, 10_000} {
			b.Run(fmt.Sprintf("%dx10/per_endpoint=%v", services, perEndpoint), func(b *testing.B) {
				n := &node{t: b, dir: b.TempDir()}
				n.write(fmt.Sprintf("[metrics]\nper_endpoint = %v\n", perEndpoint) + large(services))
				n.start()
				defer func() { n.stop() }()
				for b.Loop() {
					r, err := http.Get("http://" + n.daemon.Web().String() + "/metrics")
					if err != nil {
						b.Fatal(err)
					}
					size, err := io.Copy(io.Discard, r.Body)
					if err != nil {
						b.Fatal(err)
					}
					_ = r.Body.Close()
					b.ReportMetric(float64(size)/(1<<20), "MiB")
				}
			})
		}
	}
}
