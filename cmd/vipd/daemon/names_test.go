package daemon_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/events"
	"vipd/test/dnskit"
	"vipd/test/wait"
)

// withNames returns a configuration with a service whose endpoint has a DNS name. The configuration
// uses the DNS server at address, and allows endpoints with loopback addresses.
func withNames(address string) string {
	return fmt.Sprintf(`
[addresses]
allowed_endpoints = ["127.43.0.0/16"]
[resolver]
servers = [%q]
[services.web]
vips = ["127.42.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "web.example.org", port = 9001, weight = 2 }]
`, address)
}

// TestEndpointsByName changes a name's addresses, and then makes DNS fail. The service must use the
// new addresses, keep them during the failure and after a restart, and report the failure.
func TestEndpointsByName(t *testing.T) {
	dns := dnskit.New(t, "127.0.0.1")
	dns.Set(t, "web.example.org. 1 IN A 127.43.1.1", "web.example.org. 1 IN A 127.0.0.7")
	server(t, "127.43.1.1:9001", "one")
	server(t, "127.43.1.2:9001", "two")
	n := startNode(t, withNames(dns.Address))
	shows := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, want, func() bool { return n.endpoints() == want })
	}
	reports := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, "the problem: "+want, func() bool { return strings.Contains(n.problems(), want) })
	}
	shows("127.0.0.7:9001:unused/0 127.43.1.1:9001:active/2")
	wait.For(t, 10*time.Second, "an answer", func() bool { return ask("127.42.0.1:8080") == "one" })
	reports("endpoints[0].address: loopback and link-local addresses in answers are not used (web.example.org: 127.0.0.7)")

	dns.Set(t, "web.example.org. 1 IN A 127.43.1.2")
	wait.For(t, 10*time.Second, "the new address", func() bool { return ask("127.42.0.1:8080") == "two" })
	dns.Break("*", dnskit.Failure)
	reports("vipd.toml:18: service web: endpoints[0].address: looking up web.example.org: DNS server " + dns.Address + " answered SERVFAIL: the known endpoints (1) are in use")
	n.stop()
	n.start()
	if got := ask("127.42.0.1:8080"); got != "two" {
		t.Errorf("after a restart without DNS: answer = %q, want \"two\"", got)
	}
	reports("answered SERVFAIL")
	dns.Break("*", dnskit.None)
	wait.For(t, 20*time.Second, "the end of the problem", func() bool { return n.problems() == "" })
}

// TestDiscoveredEndpoints finds endpoints through SRV records and through a program. These
// endpoints must be checked, and a backup must get connections only if no other endpoint is up.
func TestDiscoveredEndpoints(t *testing.T) {
	dns := dnskit.New(t, "127.0.0.1")
	dns.Set(t, "_web._tcp.example.org. 1 IN SRV 1 3 9001 one.example.org.", "_web._tcp.example.org. 1 IN SRV 2 1 9002 two.example.org.",
		"one.example.org. 1 IN A 127.43.1.1", "two.example.org. 1 IN A 127.43.1.2")
	one := serverUntil(t, "127.43.1.1:9001", "one")
	server(t, "127.43.1.2:9002", "two")
	server(t, "127.43.1.3:9003", "three")
	n := startNode(t, fmt.Sprintf(`
[addresses]
allowed_endpoints = ["127.43.0.0/16"]
[resolver]
servers = [%q]
[defaults]
health = { type = "tcp", interval = "500ms", timeout = "400ms", rise = 1, fall = 2 }
[services.web]
vips = ["127.42.0.1"]
ports = [{ port = 8080 }]
discover = { dns = "_web._tcp.example.org", interval = "1s" }
[services.program]
vips = ["127.42.0.2"]
ports = [{ port = 8080 }]
discover = { exec = ["/bin/echo", "127.43.1.3:9003 weight=5"], interval = "1s" }
`, dns.Address))
	shows := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, want, func() bool { return n.endpoints() == want })
	}
	shows("127.43.1.3:9003:active/5 127.43.1.1:9001:active/3 127.43.1.2:9002:standby/0")
	for address, want := range map[string]string{"127.42.0.1:8080": "one", "127.42.0.2:8080": "three"} {
		wait.For(t, 10*time.Second, want+" at "+address, func() bool { return ask(address) == want })
	}
	one()
	shows("127.43.1.3:9003:active/5 127.43.1.1:9001:down/0 127.43.1.2:9002:active/1")
	wait.For(t, 10*time.Second, "two, the backup", func() bool { return ask("127.42.0.1:8080") == "two" })
}

// TestReplacedByWrongAddresses replaces a name's address with a wrong address, and then with a
// correct address. No connection may fail, and each change must be recorded as an event.
func TestReplacedByWrongAddresses(t *testing.T) {
	dns := dnskit.New(t, "127.0.0.1")
	dns.Set(t, "web.example.org. 1 IN A 127.43.1.1")
	server(t, "127.43.1.1:9001", "one")
	server(t, "127.43.1.2:9001", "two")
	n := startNode(t, withNames(dns.Address)+`health = { type = "tcp", interval = "500ms", timeout = "400ms", rise = 1, fall = 1 }`)
	answered := func(want string) {
		t.Helper()
		if got := ask("127.42.0.1:8080"); got != want {
			t.Errorf("answer = %q, want %q", got, want)
		}
	}
	shows := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, want, func() bool {
			answered("one")
			return n.endpoints() == want
		})
	}
	wait.For(t, 10*time.Second, "a passed check", func() bool {
		all := n.list()
		return len(all) == 1 && all[0].Health == balancer.HealthUp && ask("127.42.0.1:8080") == "one"
	})
	dns.Set(t, "web.example.org. 1 IN A 127.43.1.8", "web.example.org. 1 IN A 127.43.1.9")
	shows("127.43.1.1:9001:active/2 127.43.1.8:9001:down/0 127.43.1.9:9001:down/0")
	const problem = "looking up web.example.org: no endpoint of the new answer (2) passes its checks: the previous endpoints (1) stay in use"
	if got := n.problems(); !strings.Contains(got, problem) {
		t.Errorf("problems = %q, want %q", got, problem)
	}
	n.stop()
	n.start()
	shows("127.43.1.1:9001:active/2 127.43.1.8:9001:down/0 127.43.1.9:9001:down/0")
	dns.Set(t, "web.example.org. 1 IN A 127.43.1.2")
	wait.For(t, 10*time.Second, "the new address alone", func() bool { return n.problems() == "" && strings.HasPrefix(n.endpoints(), "127.43.1.2:9001:active/2") })
	answered("two")
	const event = "follows web.example.org: 127.43.1.2 joined; 127.43.1.8, 127.43.1.9 left"
	if got := n.eventsOf(events.Names); !strings.Contains(got, event) {
		t.Errorf("events = %s, want %s", got, event)
	}
}

// TestReadyAwaitsNames starts vipd while DNS does not answer. Other endpoints must be served
// immediately, but the node must be ready only after the first answer. After a restart, it must be
// ready with the saved answer even though DNS does not answer.
func TestReadyAwaitsNames(t *testing.T) {
	dns := dnskit.New(t, "127.0.0.1")
	dns.Set(t, "web.example.org. 1 IN A 127.43.1.1")
	dns.Break("*", dnskit.Silence)
	n := &node{t: t, dir: t.TempDir()}
	server(t, "127.43.1.5:9001", "written")
	n.write(withNames(dns.Address) + `
[services.written]
vips = ["127.42.0.5"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.43.1.5", port = 9001 }]
`)
	n.launch()
	t.Cleanup(func() { n.stop() })
	wait.For(t, 10*time.Second, "a question", func() bool { return dns.Asked("web.example.org.") > 0 })
	wait.For(t, 10*time.Second, "the service without names", func() bool { return ask("127.42.0.5:8080") == "written" })
	if code, body := n.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "for endpoints' names") {
		t.Errorf("/readyz = %d, %s, want 503 and a message that DNS has not answered", code, body)
	}
	dns.Break("*", dnskit.None)
	wait.For(t, 20*time.Second, "the node to be ready", func() bool { return n.status().Ready })
	const want = "127.43.1.1:9001:active/2 127.43.1.5:9001:active/1"
	wait.For(t, 20*time.Second, want, func() bool { return n.endpoints() == want })
	dns.Break("*", dnskit.Silence)
	n.stop()
	n.start()
	if got := n.endpoints(); got != want {
		t.Errorf("ready node after a restart: endpoints = %s, want %s", got, want)
	}
}
