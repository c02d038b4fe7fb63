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

	"vipd/cmd/internal/api"
)

// TestStatusPage: the page is complete without script, has nothing from elsewhere, allows its own script and style alone, and follows
// what changes.
func TestStatusPage(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	n := startNode(t, web+`
[services.wrong]
vips = ["127.40.0.9"]
ports = [{ port = "<b>" }]
`)
	ask("127.40.0.1:8080")
	for path, parts := range map[string][]string{
		"/":             {"<h1>n1</h1>", "userspace mode", `href="/services/web"`, "2 of 2", "&lt;b&gt;", "All is applied"},
		"/services/web": {"<h1>web on n1</h1>", "127.40.1.1:9001", "127.40.1.1:9002", ">active<"},
	} {
		r, err := http.Get("http://" + n.daemon.Web().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		_, text := n.get(path)
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s has no %s:\n%s", path, part, text)
			}
		}
		if found := regexp.MustCompile(`(?i)(src|href)="(https?:|//)[^"]*|@import|url\(|<b>`).FindString(text); found != "" {
			t.Errorf("%s has %s", path, found)
		}
		policy := r.Header.Get("Content-Security-Policy")
		for _, tag := range []string{"style", "script"} {
			inside := regexp.MustCompile(`(?s)<` + tag + `>(.*)</` + tag + `>`).FindStringSubmatch(text)
			sum := sha256.Sum256([]byte(inside[1]))
			if want := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
				t.Errorf("%s: the policy %q does not allow its %s, %s", path, policy, tag, want)
			}
		}
	}
	if code, _ := n.get("/services/other"); code != http.StatusNotFound {
		t.Errorf("a service that is not there: %d", code)
	}
	if code, _ := n.get("/v1/status"); code != http.StatusNotFound {
		t.Errorf("the API on api.http: %d", code)
	}
	n.follows(t, "/live?follow=1&of=web", ">draining<", func() {
		yes := true
		if _, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.40.1.1:9002", Draining: &yes}); err != nil {
			t.Error(err)
		}
	})
}

// follows reads a page's events until one has a part that comes with a change.
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
	t.Errorf("the events end without %s: %v", part, in.Err())
}
