package daemon_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vipd/test/dnskit"
	"vipd/test/wait"
)

// withNames returns a service whose endpoints have a name, with the DNS server at address. The
// tests have only loopback addresses.
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

// TestEndpointsByName changes the addresses of a name. The service must follow, keep them while DNS
// fails, also over a restart, and report each failure.
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
		t.Errorf("after a restart without DNS, %q answers, want two", got)
	}
	reports("answered SERVFAIL")
	dns.Break("*", dnskit.None)
	wait.For(t, 20*time.Second, "the end of the problem", func() bool { return n.problems() == "" })
}

// TestDiscoveredEndpoints finds endpoints by SRV records and by a program. Checks must cover them,
// and a backup must get connections only if no other endpoint is up.
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
