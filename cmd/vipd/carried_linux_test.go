package main

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// carriedOn opens a connection that conntrack forwards, and switches to another mode. The new mode
// must count and list the connection, and close it when its endpoint has drained.
func carriedOn(t *testing.T, from, to, intercept string) {
	g := newPlainGateway(t)
	mode := func(name string, drained time.Duration) string {
		return settings(name, "auto") + fmt.Sprintf("[userspace]\nintercept = %q\n[defaults]\ndrain_timeout = %q\n", intercept, drained)
	}
	g.write(mode(from, time.Hour), 0)
	g.start()
	_, c := g.ask(g.client)
	g.write(mode(to, time.Hour), 0)
	g.serves(to)
	if all, err := g.api.Endpoints(t.Context()); err != nil || len(all) > 0 && all[0].Active > 1 { // the connection must count once while the previous mode drains
		t.Errorf("endpoints = %+v, %v, want one live connection", all, err)
	}
	active := func(want uint64) {
		t.Helper()
		lab.Eventually(t, 30*time.Second, fmt.Sprintf("%d live connections", want), func() error {
			all, err := g.api.Endpoints(t.Context())
			if err != nil || len(all) == 0 || all[0].Active != want {
				return fmt.Errorf("endpoints = %+v, error = %w", all, err)
			}
			return nil
		})
	}
	active(1)
	g.lists(c, "that conntrack carries on")
	_, more := g.ask(g.client)
	g.lists(more, "that began in "+to+" mode")
	active(2)
	if err := echoes(c); err != nil {
		t.Error(err)
	}
	g.write(mode(to, wait.Scaled(2*time.Second)), 0)
	if _, err := g.api.Reload(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	g.write(mode(to, wait.Scaled(2*time.Second)), 1)
	lab.Eventually(t, time.Minute, "the end of the connection to a removed endpoint", func() error {
		if err := echoes(c); err == nil {
			return fmt.Errorf("echo on the connection succeeds, want an error")
		}
		return nil
	})
	g.sweep(to)
}

func TestCarriedOnByConntrack(t *testing.T) {
	for _, way := range [][3]string{{"nftables", "userspace", "redirect"}, {"iptables", "userspace", "bind"}} {
		t.Run(way[0], func(t *testing.T) { carriedOn(t, way[0], way[1], way[2]) })
	}
}

func TestIPVSCarriedOnByConntrack(t *testing.T) {
	lab.NeedIPVS(t)
	carriedOn(t, "nftables", "ipvs", "auto")
}

// TestFlowsComeToSockets switches from nftables mode to userspace mode while a UDP client sends
// datagrams, once with each value of intercept. The client's datagrams must reach vipd's socket.
func TestFlowsComeToSockets(t *testing.T) {
	for _, intercept := range []string{"redirect", "bind"} {
		t.Run(intercept, func(t *testing.T) {
			g := newPlainGateway(t)
			g.ends[0].Echo("udp", "u1", netip.MustParseAddrPort("10.2.0.2:8081"))
			mode := func(name string) {
				program.Save(t, g.file, settings(name, "auto")+fmt.Sprintf("[userspace]\nintercept = %q\n", intercept)+`
[services.dns]
vips = ["10.96.0.10"]
ports = [{ port = 53, protocol = "udp", target_port = 8081 }]
endpoints = [{ address = "10.2.0.2" }]
`)
			}
			mode("nftables")
			g.start()
			c, err := g.client.Dial(t.Context(), "udp", "10.96.0.10:53")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := lab.Ask(c); err != nil {
				t.Fatal(err)
			}
			mode("userspace")
			g.serves("userspace")
			lab.Eventually(t, time.Minute, "the flow to reach the socket", func() error {
				sends(t, c)
				all, err := g.api.Connections(t.Context(), dataplane.ConnectionQuery{Service: "dns"})
				if err != nil || len(all) != 1 || all[0].State != "flow" {
					return fmt.Errorf("connections = %+v, error = %w", all, err)
				}
				return nil
			})
			g.sweep("userspace")
		})
	}
}

func sends(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Write([]byte("still there?\n")); err != nil {
		t.Log(err) // the error may be the refusal of the previous datagram
	}
}
