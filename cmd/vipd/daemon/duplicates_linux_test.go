package daemon_test

import (
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestReportsDuplicates holds VIPs that another host on the link also has. Status, metrics and
// events must report a problem for each of these VIPs until the other host releases the VIP. All
// services must be served.
func TestReportsDuplicates(t *testing.T) {
	for _, device := range []string{"vipd0", "other"} {
		t.Run(device, func(t *testing.T) {
			l := lab.New(t)
			lab.Need(t, "nft")
			other := l.Add("other")
			l.Link(l.Host(), other, "10.73.0.1/24", "10.73.0.2/24", "fd73::1/64", "fd73::2/64")
			mode, _ := modes.Find(config.NFTablesMode)
			n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}, watch: 50 * time.Millisecond}
			n.cleansUp()
			n.configure(`mode = "userspace"`, `mode = "nftables"`, `
[addresses]
interface = "`+device+`"
[services.web]
vips = ["10.73.0.2", "fd73::2", "10.73.0.3", "10.96.0.10"]
ports = [{ port = 8080 }]
endpoints = [{ address = "10.60.1.1", port = 9001 }, { address = "fd60::1", port = 9001 }]
`)
			n.start()
			t.Cleanup(func() { n.stop() })
			has := func(vip string) bool { return strings.Contains(n.problems(), "has the address "+vip+" on other") }
			wait.For(t, time.Minute, "the problems", func() bool {
				_, metrics := n.get("/metrics")
				return has("10.73.0.2") && has("fd73::2") && strings.Contains(n.eventsOf(events.Problem), "has the address 10.73.0.2") &&
					strings.Contains(metrics, `vipd_problems{field="vips",service="web"} 2`)
			})
			if has("10.73.0.3") || has("10.96.0.10") {
				t.Errorf("problems = %s, want none for addresses that no other host has", n.problems())
			}
			other.DelAddr("host", "10.73.0.2/24")
			other.DelAddr("host", "fd73::2/64")
			wait.For(t, time.Minute, "the end of the problems", func() bool { return !has("10.73.0.2") && !has("fd73::2") })
		})
	}
}
