package daemon_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	commands "vipd/cmd/internal/tracing"
	"vipd/test/program"
	"vipd/test/wait"
)

// receiver accepts traces as OTLP over HTTP.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*otlp.Span
}

func startReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var got collector.ExportTraceServiceRequest
		text, err := io.ReadAll(q.Body)
		if err == nil {
			err = proto.Unmarshal(text, &got)
		}
		if err != nil || q.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", q.URL, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, resource := range got.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				r.spans = append(r.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// trees returns the received traces, one on each line. A line shows each span with its name, its
// relevant attributes, and its children in parentheses, in the order in which they started. Spans
// of the host's kernel changes are omitted, because they depend on earlier tests.
func (r *receiver) trees() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if !slices.ContainsFunc(r.spans, func(resource *otlp.Span) bool { return string(resource.SpanId) == string(s.ParentSpanId) }) {
			all = append(all, r.tree(s))
		}
	}
	return all
}

func (r *receiver) tree(s *otlp.Span) string {
	text, batches := s.Name, ""
	for _, a := range s.Attributes {
		switch a.Key {
		case "vipd.cause":
			text += " of " + a.Value.GetStringValue()
		case "vipd.services":
			for _, name := range a.Value.GetArrayValue().GetValues() {
				text += " " + name.GetStringValue()
			}
		case "vipd.frontends":
			text += fmt.Sprint(" ", a.Value.GetIntValue())
		case "vipd.batches":
			batches = fmt.Sprintf(" in %d batches", a.Value.GetIntValue()) + batches
		case "vipd.bytes":
			if a.Value.GetIntValue() > 0 {
				batches += " with bytes"
			}
		}
	}
	if s.Name == "apply" {
		text += batches
	}
	if s.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR {
		text += " fails"
	}
	for _, l := range s.Links {
		for _, to := range r.spans {
			if string(to.SpanId) == string(l.SpanId) {
				text += " after " + to.Name
			}
		}
	}
	var children []*otlp.Span
	for _, c := range r.spans {
		if string(c.ParentSpanId) == string(s.SpanId) {
			children = append(children, c)
			if c.Name == "change" && s.Name != "change" {
				continue // a node may apply the host's state at any time
			}
			if c.StartTimeUnixNano < s.StartTimeUnixNano || c.EndTimeUnixNano > s.EndTimeUnixNano {
				text += " (" + c.Name + " is outside)"
			}
		}
	}
	slices.SortStableFunc(children, func(a, b *otlp.Span) int { return int(a.StartTimeUnixNano) - int(b.StartTimeUnixNano) })
	var inside []string
	for _, c := range children {
		inside = append(inside, r.tree(c))
	}
	if len(inside) > 0 {
		text += " (" + strings.Join(inside, ", ") + ")"
	}
	return text
}

// wantTrace waits for a trace.
func (r *receiver) wantTrace(t *testing.T, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(r.trees(), "\n"))
		}
	}()
	wait.For(t, 0, "the trace "+want, func() bool { return slices.Contains(r.trees(), want) })
}

const served = "(decode, compile, engine (prepare host, apply 1, finish host))"

// TestTraceOfAFile adds services to a file. The last service uses a port that is taken. Each change
// must have one trace, from reading the file to applying the change. Retries after a failure must
// have separate traces that link to the change's trace.
func TestTraceOfAFile(t *testing.T) {
	r := startReceiver(t)
	tracing := fmt.Sprintf("[tracing]\notlp_endpoint = %q\n", r.URL)
	n := startNode(t, tracing+web)
	r.wantTrace(t, "change of store web (decode, compile, engine (observe, prepare host, apply 1, finish host))")
	n.write(tracing + web + strings.NewReplacer("services.web", "services.api", "port = 8080", "port = 8081").Replace(web))
	r.wantTrace(t, "change of store api "+served)
	taken, err := net.Listen("tcp", "127.40.0.1:8082")
	if err != nil {
		t.Fatal(err)
	}
	n.write(tracing + web + strings.NewReplacer("services.web", "services.blocked", "port = 8080", "port = 8082").Replace(web))
	r.wantTrace(t, "again of retry fails after change (engine fails (prepare host, apply 1 fails, finish host))")
	_ = taken.Close()
	r.wantTrace(t, "again of retry after change (engine (prepare host, apply 1, finish host))")
}

// vipctl runs the program with the node's configuration.
func (n *node) vipctl(args ...string) {
	n.t.Helper()
	c := exec.CommandContext(n.t.Context(), filepath.Join(program.Bin(n.t), "vipctl"), append([]string{args[0], "--config", n.file()}, args[1:]...)...)
	if text, err := c.CombinedOutput(); err != nil {
		n.t.Fatalf("vipctl %v: %v\n%s", args, err, text)
	}
}

// TestTraceOfAReload runs vipctl reload. The trace must start at the command, and include the work
// that the reload causes.
func TestTraceOfAReload(t *testing.T) {
	r := startReceiver(t)
	tracing := fmt.Sprintf("[tracing]\notlp_endpoint = %q\n", r.URL)
	n := startNode(t, tracing+web)
	n.vipctl("reload")
	r.wantTrace(t, "vipctl reload (reload)")
	from := commands.Within(t.Context(), "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	names := []string{"services.web", "services.api"}
	wait.For(t, 0, "a change that the reload saw first", func() bool {
		slices.Reverse(names)
		n.write(tracing + strings.Replace(web, "services.web", names[0], 1))
		if _, err := n.client.Reload(from, ""); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(r.trees(), func(tree string) bool { return strings.HasPrefix(tree, "reload (change of store ") })
	})
}

// TestTraceOfEtcd changes a service in etcd with vipctl. The trace must start at the command.
func TestTraceOfEtcd(t *testing.T) {
	r := startReceiver(t)
	m := joinFleet(t, fmt.Sprintf("[tracing]\notlp_endpoint = %q\n", r.URL))
	m.start()
	m.apply("far", "127.41.9.1", "127.41.9.2:9001")
	r.wantTrace(t, "change of store far "+served)
	file := filepath.Join(t.TempDir(), "near.toml")
	text := strings.NewReplacer("services.web", "services.near", "127.40.0.1", "127.41.9.3").Replace(web)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m.vipctl("apply", "-f", file)
	r.wantTrace(t, "vipctl apply (change of store near "+served+")")
	m.vipctl("delete", "service", "near")
	r.wantTrace(t, "vipctl delete service (change of store near "+served+")")
}

// TestReceiverAway exports traces to a server that does not answer. Changes must be applied, and
// vipd must stop as usual.
func TestReceiverAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // this server accepts connections, but never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	tracing := fmt.Sprintf("[tracing]\notlp_endpoint = \"http://%s\"\n", l.Addr())
	n := startNode(t, tracing+web)
	n.write(tracing + strings.Replace(web, "services.web", "services.api", 1))
	wait.For(t, 0, "the changed file", func() bool { return strings.Contains(n.endpoints(), "127.40.1.1:9001") && n.status().Services == 1 })
	ended := make(chan struct{})
	go func() { n.stop(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(wait.Patience):
		t.Fatal("vipd is still running = true, want false")
	}
}
