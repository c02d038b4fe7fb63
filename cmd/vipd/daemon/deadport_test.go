package daemon_test

import (
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

// TestDeadPortIsShownPerPort runs servers on only one of a service's two ports. Every view in the
// API must show the other port as down, and the service as served.
func TestDeadPortIsShownPerPort(t *testing.T) {
	server(t, "127.40.3.1:9001", "one")
	server(t, "127.40.3.2:9001", "two")
	n := startNode(t, `
[services.web]
vips = ["127.40.2.1"]
ports = [{ name = "http", port = 8080, target_port = 9001 }, { name = "metrics", port = 9000, target_port = 9002 }]
endpoints = [{ address = "127.40.3.1" }, { address = "127.40.3.2" }]
health = { type = "tcp", interval = "500ms", timeout = "400ms", rise = 2, fall = 2 }
`)
	const want = "http 2/2, metrics 0/2"
	var status api.Status
	wait.For(t, time.Minute, "the port to be down", func() (is bool) {
		var err error
		status, err = n.client.Status(t.Context())
		return err == nil && status.Health.Down == 2
	})
	if s := status.Health.Services; len(s) != 1 || s[0].Service != "web" || s[0].Ports.Text("/") != want {
		t.Errorf("status = %+v, want %s", s, want)
	}
	services, err := n.client.Services(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := api.UseOf(services[0].Endpoints).Text("/"); got != want {
		t.Errorf("endpoints of the service = %s, want %s", got, want)
	}
	for i, up := range []int{2, 0} {
		if p := services[0].Ports[i]; p.Up != up || p.Of != 2 {
			t.Errorf("port %s: endpoints up = %d of %d, want %d of 2", p.Name, p.Up, p.Of, up)
		}
	}
	traffic, err := n.client.Traffic(t.Context())
	if err != nil || traffic.Services[0].Ports.Text("/") != want {
		t.Errorf("ports in traffic = %v, error = %v, want %s", traffic.Services[0].Ports, err, want)
	}
	wait.For(t, time.Minute, "the page to show it", func() bool {
		_, text := n.get("/")
		return strings.Contains(text, `<td class="n notice">http 2 of 2, metrics 0 of 2</td>`) && strings.Contains(text, "2 of 4 checks failed")
	})
}
