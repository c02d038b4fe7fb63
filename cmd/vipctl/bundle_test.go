package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestShareable prepares a configuration that contains secrets for a bundle. The secrets must be
// hidden, and everything else must remain.
func TestShareable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vipd.toml")
	text := `# SECRET
[etcd]
endpoints = ["http://root:SECRET@10.0.0.1:2379"]
[tracing]
otlp_endpoint = "https://traces.example/v1?key=SECRET"
[hooks]
on_health = ["/bin/page", "--token", "SECRET"]
[services.web]
vips = ["10.96.0.10"]
health = { type = "http", path = "/ready?token=SECRET", headers = { Authorization = "SECRET" }, send = "SECRET" }
[services.db]
health = { type = "exec", command = ["/bin/check", "-pSECRET"] }
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := shareable(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "SECRET") {
		t.Errorf("shareable text = %s, want no secrets", got)
	}
	for _, kept := range []string{
		`["/bin/page", "(hidden)"]`, `["/bin/check", "(hidden)"]`, `"/ready?(hidden)"`, `"https://traces.example/v1?(hidden)"`, "@10.0.0.1:2379", "10.96.0.10",
	} {
		if !strings.Contains(string(got), kept) {
			t.Errorf("shareable text = %s, want %s in it", got, kept)
		}
	}
}
