package main

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestUnansweredClientsHintTheCheck silences an endpoint in iptables mode, and then makes it refuse
// connections. vipd itself sees no connection attempts. The next check is not due for a long time,
// but must run immediately because clients get no answer.
func TestUnansweredClientsHintTheCheck(t *testing.T) {
	g := newGateway(t)
	third := g.Add("s3")
	g.Link(g.Host(), third, "10.2.2.1/24", "10.2.2.2/24")
	third.Default("10.2.2.1")
	third.Echo("tcp", "s3", netip.MustParseAddrPort("10.2.2.2:8080"))
	text := settings("iptables", "nft") + `
[services.web]
vips = ["10.96.0.10"]
ports = [{ port = 80, target_port = 8080 }]
endpoints = [{ address = "10.2.0.2" }, { address = "10.2.2.2" }]
health = { type = "tcp", interval = "5m", fast_interval = "200ms", timeout = "2s", rise = 1, fall = 2 }
`
	program.Save(t, g.file, text)
	g.start()
	want := func(v balancer.Verdict, meanwhile func()) {
		t.Helper()
		wait.For(t, 30*time.Second, "s3 to be "+string(v), func() bool {
			meanwhile()
			all, err := g.api.Endpoints(t.Context())
			return err == nil && len(all) == 2 && all[0].Health == balancer.HealthUp && all[1].Health == v
		})
	}
	up := func() {
		t.Helper()
		began := time.Now()
		want(balancer.HealthUp, func() { // after a late check on a busy machine, the next check would run only minutes later
			if time.Since(began) > 15*time.Second {
				g.stop()
				g.start()
				began = time.Now()
			}
		})
	}
	up()
	for _, how := range [][]string{{"DROP"}, {"REJECT", "--reject-with", "tcp-reset"}} {
		third.Exec("iptables", append([]string{"-A", "INPUT", "-p", "tcp", "--dport", "8080", "-j"}, how...)...)
		want(balancer.HealthDown, func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if c, err := g.client.Dial(ctx, "tcp", "10.96.0.10:80"); err == nil {
				_ = c.Close()
			}
		})
		third.Exec("iptables", "-F", "INPUT")
		g.stop()
		g.start() // restarts the checks
		up()
	}
}
