package daemon_test

import (
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestRemovedVIPLeaves removes three services: one without clients, one whose client has
// disconnected, and one with an open connection. The first two VIPs must be removed from the host
// long before drain_timeout, and the third when its connection ends.
func TestRemovedVIPLeaves(t *testing.T) {
	for _, name := range []config.ModeName{config.NFTablesMode, config.IPTablesMode, config.UserspaceMode} {
		t.Run(string(name), func(t *testing.T) { removedVIPLeaves(t, name) })
	}
}

// TestIPVSRemovedVIPLeaves makes the same check as TestRemovedVIPLeaves, but in ipvs mode.
func TestIPVSRemovedVIPLeaves(t *testing.T) {
	lab.NeedIPVS(t)
	removedVIPLeaves(t, config.IPVSMode)
}

func removedVIPLeaves(t *testing.T, name config.ModeName) {
	l := lab.New(t)
	lab.Need(t, "nft", "iptables")
	client, server := l.Add("client"), l.Add("server")
	l.Link(l.Host(), client, "10.71.0.1/24", "10.71.0.2/24")
	l.Link(l.Host(), server, "10.72.0.1/24", "10.72.0.2/24")
	client.Default("10.71.0.1")
	server.Default("10.72.0.1")
	server.Echo("tcp", "one", netip.MustParseAddrPort("10.72.0.2:9001"))
	mode, _ := modes.Find(name)
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	services := ""
	for i, vip := range []string{"10.60.0.1", "10.60.0.2", "10.60.0.3"} {
		services += strings.NewReplacer("NAME", string(rune('a'+i)), "VIP", vip).Replace(`
[services.NAME]
vips = ["VIP"]
ports = [{ port = 8080 }]
endpoints = [{ address = "10.72.0.2", port = 9001 }]
drain_timeout = "1h"
`)
	}
	const other = `
[services.other]
vips = ["10.60.0.9"]
ports = [{ port = 8080 }]
endpoints = [{ address = "10.72.0.2", port = 9001 }]
`
	n.configure(`mode = "userspace"`, `mode = "`+string(name)+`"`, other+services)
	n.start()
	t.Cleanup(func() { n.stop() })
	held := func() (all string) {
		for _, a := range n.status().Addresses {
			all += a.Address + " "
		}
		return all
	}
	for _, to := range []string{"10.60.0.2:8080", "10.60.0.3:8080"} {
		c, err := client.Dial(t.Context(), "tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lab.Ask(c); err != nil {
			t.Fatal(err)
		}
		if to == "10.60.0.2:8080" {
			_ = c.Close()
			continue
		}
		defer func() {
			answer := make([]byte, 3)
			_, err := c.Write([]byte("on\n"))
			if err == nil {
				_, err = io.ReadFull(c, answer)
			}
			if err != nil || string(answer) != "on\n" {
				t.Errorf("open connection: answer = %q, error = %v, want an echo", answer, err)
			}
			_ = c.Close()
			wait.For(t, time.Minute, "the last VIP to leave", func() bool { return held() == "10.60.0.9 " })
		}()
	}
	n.configure(`mode = "userspace"`, `mode = "`+string(name)+`"`, other)
	began := time.Now()
	wait.For(t, time.Minute, "the VIPs without connections to leave", func() bool { return held() == "10.60.0.3 10.60.0.9 " })
	t.Logf("time until the first two VIPs left = %s", time.Since(began))
}
