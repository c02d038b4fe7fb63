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
discover = { exec = ["/bin/members", "--token=SECRET"] }
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
		`["/bin/page", "(hidden)"]`, `["/bin/check", "(hidden)"]`, `["/bin/members", "(hidden)"]`, `"/ready?(hidden)"`, `"https://traces.example/v1?(hidden)"`, "@10.0.0.1:2379", "10.96.0.10",
	} {
		if !strings.Contains(string(got), kept) {
			t.Errorf("shareable text = %s, want %s in it", got, kept)
		}
	}
}

// TestWithoutClients lists a table whose sets contain clients and a VIP. Only the VIP may remain.
func TestWithoutClients(t *testing.T) {
	const table = `table ip vipd-guard {
	set served {
		typeof ip daddr . meta l4proto . th dport
		elements = { 10.96.0.10 . tcp . 80,
			     10.96.0.11 . tcp . 80 }
	}

	set meter {
		typeof ip saddr
		flags dynamic,timeout
		elements = { 10.1.0.2 limit rate over 5/second timeout 1s expires 884ms,
			     10.1.0.3 limit rate over 5/second timeout 1s expires 900ms }
	}

	map sticky {
		typeof ip saddr . ip daddr : meta mark
		elements = { 10.1.0.4 . 10.96.0.10 : 0x1 }
	}

	chain served-only {
		ip daddr 10.96.0.12 accept
	}
}
`
	got := string(withoutClients([]byte(table)))
	if strings.Contains(got, "10.1.0.") {
		t.Errorf("table = %s, want no clients", got)
	}
	for _, kept := range []string{"10.96.0.10 . tcp . 80,\n", "10.96.0.11 . tcp . 80 }\n\t}\n", "elements = { (hidden) }\n\t}\n", "10.96.0.12 accept\n\t}\n}\n"} {
		if !strings.Contains(got, kept) {
			t.Errorf("table = %s, want %q in it", got, kept)
		}
	}
}
