package dataplanetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
)

// testStreams sends streams and datagrams of several sizes. They must arrive complete and in order,
// and half-closed streams must be closed properly.
func testStreams(r *rig) {
	r.apply(newService("web", r.w.vip, endpoints(r.w.servers...)...))
	random := rand.NewChaCha8([32]byte{'s', 't', 'r', 'e', 'a', 'm', 's'})
	r.each(func(r *rig, key balancer.Key) {
		if key.Proto == balancer.UDP {
			for _, size := range []int{0, 1, 1400, 1500, 9000, 60000} {
				checkDatagram(r, key, random, size)
			}
			return
		}
		for _, size := range []int{0, 1, 100_000, 4 << 20} {
			checkStream(r, r.w.client, key, random, size)
		}
	})
}

// testStrays sends TCP segments that are outside the window, from either end of a connection.
// Connections must survive these segments.
func testStrays(r *rig) {
	r.apply(newService("web", r.w.vip, endpoints(r.w.servers...)...))
	r.eachOf(balancer.TCP, func(r *rig, key balancer.Key) {
		for _, from := range []*lab.NS{r.w.client, r.w.host} {
			for _, by := range []string{"client", "server"} {
				c, a := r.mustOpen(from, netip.Addr{}, key)
				sender, end := from, c
				var err error
				if by == "server" {
					sender = serverOf(r, a).ns
					end, err = echoOf(r, a).Conn(a.Client)
				}
				if err == nil {
					err = sender.SendStray(end)
				}
				if err != nil {
					r.Fatal(err)
				}
				if err := alive(c, atOnce); err != nil {
					r.Errorf("%s: error of a connection from %s after the %s sent a segment outside the window = %v, want nil", key, from.Name, by, err)
				}
			}
		}
	})
}

func checkDatagram(r *rig, key balancer.Key, random io.Reader, size int) {
	r.Helper()
	c, _ := r.mustOpen(r.w.client, netip.Addr{}, key)
	sent, got := make([]byte, size), make([]byte, 64<<10)
	_, _ = io.ReadFull(random, sent) // never fails
	if err := c.SetDeadline(time.Now().Add(patience(atOnce))); err != nil {
		r.Fatal(err)
	}
	if _, err := c.Write(sent); err != nil {
		r.Fatalf("%s: sending %d bytes: %v", key, size, err)
	}
	n, err := c.Read(got)
	if err != nil || !bytes.Equal(got[:n], sent) {
		r.Errorf("%s: echo of a datagram of %d bytes = %d bytes, error = %v, want the same data", key, size, n, err)
	}
}

func checkStream(r *rig, from *lab.NS, key balancer.Key, random io.Reader, size int) {
	r.Helper()
	c, _ := r.mustOpen(from, netip.Addr{}, key)
	sent := make([]byte, size)
	_, _ = io.ReadFull(random, sent) // never fails
	if err := c.SetDeadline(time.Now().Add(patience(4 * atOnce))); err != nil {
		r.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, sent) {
		r.Errorf("%s: echo of a stream of %d bytes = %d bytes, error = %v, want the same data", key, size, len(got), err)
	}
}

// testConnections opens connections to a VIP that no other test case uses, because the kernel
// remembers its counters. The dataplane must list and count the connections, even after the service
// was removed and added again.
func testConnections(r *rig) {
	vip := vipN(25)
	web := newService("web", vip, endpoints(r.w.servers...)...)
	r.apply(web)
	r.each(func(r *rig, key balancer.Key) {
		key.Addr = vip.inFamilyOf(key.Addr)
		before := counted(r.dp, key.Proto)
		c, a := r.mustOpen(r.w.client, netip.Addr{}, key)
		checkListed(r, key, c.LocalAddr().String(), a)
		r.tally(r.w.client, key, 4)
		r.Eventually("counting 5 connections", func() error { return counts5(r.dp, key.Proto, before) })
		r.apply()
		r.apply(web)
		if err := counts5(r.dp, key.Proto, before); err != nil {
			r.Errorf("error after the service was removed and added again = %v, want nil", err)
		}
	})
}

// Eventually is like lab.Eventually, but for actions that do not wait for a timer.
func (r *rig) Eventually(what string, check func() error) {
	r.Helper()
	lab.Eventually(r, atOnce, what, check)
}

// counted returns the number of connections to a port of the service web. The port is named after
// its protocol.
func counted(c dataplane.Dataplane, proto balancer.Protocol) (n uint64) {
	for _, f := range c.Counters() {
		if f.Service == "web" && f.Port == string(proto) {
			n += f.Connections
		}
	}
	return n
}

func counts5(c dataplane.Dataplane, proto balancer.Protocol, before uint64) error {
	if got := counted(c, proto) - before; got != 5 {
		return fmt.Errorf("number of counted connections = %d, want 5", got)
	}
	return nil
}

// checkListed checks that the dataplane lists a client's connection with the server that answers
// this client.
func checkListed(r *rig, key balancer.Key, client string, a lab.Answer) {
	r.Helper()
	r.Eventually("listing a connection", func() error {
		all, err := dataplane.Connections(r.Context(), optional[dataplane.ListsConnections](r), dataplane.ConnectionQuery{})
		if err != nil {
			return err
		}
		for _, c := range all {
			if c.Frontend == key && c.Service == "web" && c.Client.String() == client && c.Backend == a.Local {
				return nil
			}
		}
		return fmt.Errorf("%s connection of %s to %s is not among %v", key, client, a.Local, all)
	})
}
