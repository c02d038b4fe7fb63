package main

import (
	"fmt"
	"testing"
	"time"

	"vipd/test/lab"
)

// TestIPVSRestart restarts vipd in ipvs mode while clients on other hosts and on this host connect
// one after the other. The kernel must serve all of them, and each must be counted once.
func TestIPVSRestart(t *testing.T) {
	lab.NeedIPVS(t)
	g := newPlainGateway(t)
	g.write(settings("ipvs", "auto"), 0, 1)
	g.start()
	clients := g.clients(4, time.Hour)
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
			return fmt.Errorf("services = %v, error = %w", services, err)
		}
		if got, want := services[0].Ports[0].Connections, uint64(clients.done.Load()); got != want {
			return fmt.Errorf("counted connections = %d, want %d", got, want)
		}
		return nil
	})
	g.stop()
}
