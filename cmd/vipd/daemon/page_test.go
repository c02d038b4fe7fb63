package daemon_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

// TestStatusPage reads the page without a browser. The page must be complete without scripts and
// external assets, allow only its own script and style, and show changes.
func TestStatusPage(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	n := startNode(t, web+`
[services.wrong]
vips = ["127.40.0.9"]
ports = [{ port = "<b>" }]
`)
	ask("127.40.0.1:8080")
	for path, parts := range map[string][]string{
		"/":             {"<h1>n1</h1>", "userspace mode", `href="/services/web"`, "2 of 2", "1 service, 1 frontend, 2 endpoints", "&lt;b&gt;", "Everything is applied"},
		"/services/web": {"<h1>web on n1</h1>", "127.40.1.1:9001", "127.40.1.1:9002", ">active<", "<strong>127.40.0.1:8080/tcp</strong>"},
	} {
		r, err := http.Get("http://" + n.daemon.Web().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		_, text := n.get(path)
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("page %s has no %s; page =\n%s", path, part, text)
			}
		}
		if found := regexp.MustCompile(`(?i)(src|href)="(https?:|//)[^"]*|@import|url\(|<b>`).FindString(text); found != "" {
			t.Errorf("page %s contains %s, want no external asset", path, found)
		}
		policy := r.Header.Get("Content-Security-Policy")
		for _, tag := range []string{"style", "script"} {
			inside := regexp.MustCompile(`(?s)<` + tag + `>(.*)</` + tag + `>`).FindStringSubmatch(text)
			sum := sha256.Sum256([]byte(inside[1]))
			if want := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
				t.Errorf("page %s: policy = %q, want it to allow the page's %s: %s", path, policy, tag, want)
			}
		}
	}
	for _, path := range []string{"/services/other", "/fleet"} {
		if code, _ := n.get(path); code != http.StatusNotFound {
			t.Errorf("missing %s: status = %d, want 404", path, code)
		}
	}
	if code, _ := n.get("/v1/status"); code != http.StatusNotFound {
		t.Errorf("API on api.http: status = %d, want 404", code)
	}
	n.follows(t, "/live?follow=1&of=web", ">draining<", func() {
		yes := true
		if _, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.40.1.1:9002", Draining: &yes}); err != nil {
			t.Error(err)
		}
	})
}

// TestFleetPage reads the fleet's page. It must list the nodes in etcd, and report an etcd outage
// immediately.
func TestFleetPage(t *testing.T) {
	m := joinFleet(t, web)
	m.start()
	has := func(what, part string) {
		t.Helper()
		wait.For(t, time.Minute, what, func() bool {
			_, text := m.get("/fleet")
			return strings.Contains(text, part)
		})
	}
	has("the node to be ready", `<th scope="row">n1</th><td>-</td><td>userspace</td><td class="good">yes</td>`)
	m.etcd.Members[0].Pause()
	has("etcd to be missed", "The nodes can't be read from etcd")
}

// follows reads a page's events until an event contains part, which must appear only after change.
func (n *node) follows(t *testing.T, path, part string, change func()) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.daemon.Web().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	in := bufio.NewScanner(r.Body)
	in.Buffer(nil, 1<<20)
	for first := true; in.Scan(); {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok {
			continue
		}
		var content string
		if err := json.Unmarshal([]byte(data), &content); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(content, part) {
			return
		}
		if first {
			change()
		}
		first = false
	}
	t.Errorf("no event with %s before the events ended; error = %v", part, in.Err())
}
