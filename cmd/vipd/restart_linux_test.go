package main

import (
	"fmt"
	"testing"
	"time"

	"vipd/test/lab"
)

// TestIPVSRestart ends vipd in ipvs mode and starts it again while clients, elsewhere and on the host, connect one after the
// other: the kernel goes on, so that none is refused or left without an answer. Each is counted once.
func TestIPVSRestart(t *testing.T) {
	lab.NeedIPVS(t)
	g := newPlainGateway(t)
	g.write(settings("ipvs", "auto"), 0, 1)
	g.start()
	clients := g.clients(8, time.Hour)
	for range 5 {
		clients.more(50)
		g.stop()
		clients.more(50)
		g.start()
	}
	clients.more(50)
	clients.stop()
	lab.Eventually(t, 30*time.Second, "counting every connection", func() error {
		services, err := g.api.Services(t.Context())
		if err != nil || len(services) != 1 {
			return fmt.Errorf("%v, %w", services, err)
		}
		if got, want := services[0].Ports[0].Connections, uint64(clients.done.Load()); got != want {
			return fmt.Errorf("counted %d connections of %d", got, want)
		}
		return nil
	})
	g.stop()
}
