package dataplanetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// testKilled kills connections that carry data in both directions. They must be closed, although
// the kernel would translate later packets to the same server again.
func testKilled(r *rig) {
	web := newService("web", r.w.vip, endpoints(r.w.servers[0])...)
	r.apply(web)
	if r.s.VirtualServers {
		if n, err := optional[dataplane.EndsConnections](r).Kill(r.Context(), dataplane.ConnectionQuery{Service: web.Name}); err == nil {
			r.Errorf("connections ended by Kill = %d without an error, want an error because the kernel can't end single connections of virtual servers", n)
		}
		return
	}
	checkStreamsEnd(r, web.Name, "alone")
	checkEndedAreNotKilled(r)
	needs := r.dp.Traits().Needs
	if h, ok := r.host.(interface{ SetMode(dataplane.Needs) }); ok && needs.Resets {
		h.SetMode(needs.And(dataplane.Needs{Forward: true, LocalIn: true}))
		defer h.SetMode(needs)
		r.apply(web, newService("other", vipN(30), endpoints(r.w.servers...)...)) // after a change, the host's guard follows the mode
		checkStreamsEnd(r, web.Name, "while virtual servers drain")
	}
}

// checkStreamsEnd starts streams from clients behind the host and on the host, and then kills their
// connections. All clients must notice this.
func checkStreamsEnd(r *rig, of balancer.Name, when string) {
	r.Helper()
	for range 3 {
		ends := map[string]<-chan error{}
		for _, vip := range r.w.vip {
			for _, from := range []*lab.NS{r.w.client, r.w.host} {
				c, _ := r.mustOpen(from, netip.Addr{}, keyOf(vip, vipPort, balancer.TCP))
				ends[fmt.Sprintf("from %s to %s", from.Name, vip)] = startStream(r, c)
			}
		}
		n, err := optional[dataplane.EndsConnections](r).Kill(r.Context(), dataplane.ConnectionQuery{Service: of})
		if err != nil || n < len(ends) { // the kernel may also end connections that it remembers from an earlier test case
			r.Errorf("%[1]s: ended connections = %[3]d of %[2]d, error = %[4]v, want all", when, len(ends), n, err)
		}
		for which, ended := range ends {
			if err := <-ended; errors.Is(err, os.ErrDeadlineExceeded) {
				r.Fatalf("%s: error of the stream %s after the kill = %v, want a reset", when, which, err)
			}
		}
	}
}

// checkEndedAreNotKilled waits until all connections to a frontend are closed. Kill must then
// return 0, although conntrack still remembers the closed connections.
func checkEndedAreNotKilled(r *rig) {
	r.Helper()
	q := dataplane.ConnectionQuery{Frontend: keyOf(r.w.vip[0], vipPort, balancer.TCP)}
	r.mustAsk(r.w.client, q.Frontend)
	lab.Eventually(r, settleTime, "the end of the connections", func() error {
		open := 0
		err := optional[dataplane.ListsConnections](r).Connections(r.Context(), q, func(c *dataplane.Connection) error {
			if !c.Closed() {
				open++
			}
			return nil
		})
		if err == nil && open > 0 {
			err = fmt.Errorf("open connections = %d, want 0", open)
		}
		return err
	})
	if n, err := optional[dataplane.EndsConnections](r).Kill(r.Context(), q); n != 0 || err != nil {
		r.Errorf("connections ended by Kill = %d, %v; want 0 because all have already ended", n, err)
	}
}

// startStream sends data on a connection and reads the echo until the connection is closed. The
// returned channel receives the error that ended the connection.
func startStream(r *rig, c net.Conn) <-chan error {
	r.Helper()
	if err := c.SetDeadline(time.Now().Add(wait.Patience)); err != nil {
		r.Fatal(err)
	}
	go func() { _, _ = io.Copy(c, zeros{}) }() // mustOpen closes c when the test ends
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}()
	return ended
}
