package main

import (
	"testing"
	"time"

	"vipd/test/lab"
)

// TestIPVSRestart ends vipd in ipvs mode and starts it again while clients, elsewhere and on the host, connect one after the
// other: the kernel goes on, so that none is refused or left without an answer.
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
	g.stop()
}
