package daemon_test

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"vipd/test/program"
)

// TestWebHost sends requests to api.http with several Host headers. It must answer under the host's
// own names, the names in api.http_hosts and any address, and must reject all other names.
func TestWebHost(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	program.Save(t, n.file(), strings.Replace(header, "[api]\n", "[api]\nhttp_hosts = [\"LB1.example.org\"]\n", 1))
	n.start()
	t.Cleanup(func() { n.stop() })
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		"127.0.0.1:9890": 200, "[::1]:9890": 200, "192.0.2.1": 200, "localhost": 200, host: 200, "n1:9890": 200, "lb1.Example.org.": 200,
		"attacker.example:9890": 421, "lb2.example.org": 421, "127.0.0.1.attacker.example": 421,
	} {
		r, err := http.NewRequest(http.MethodGet, "http://"+n.daemon.Web().String()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = name
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("status under the name %q = %d, want %d", name, answer.StatusCode, want)
		}
	}
	probe, err := net.Dial("tcp", n.daemon.Web().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = probe.Close() }()
	if _, err := probe.Write([]byte("GET /readyz HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(probe).ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
		t.Errorf("probe without Host: answer = %q, %v, want 200", line, err)
	}
	if p := n.problems(); p != "" {
		t.Errorf("problems = %q, want none", p)
	}
}

// TestWebExposed makes api.http listen on all addresses. The status must contain a warning while it
// does so.
func TestWebExposed(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	program.Save(t, n.file(), strings.Replace(header, `http = "127.0.0.1:0"`, `http = "0.0.0.0:0"`, 1))
	n.start()
	t.Cleanup(func() { n.stop() })
	if p := n.problems(); !strings.Contains(p, "api.http: ") || !strings.Contains(p, "without a password to every host that reaches it") {
		t.Errorf("problems = %q, want a problem that api.http is exposed", p)
	}
}
