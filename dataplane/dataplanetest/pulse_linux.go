package dataplanetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/test/lab"
	"vipd/test/wait"
)

// repeatedly calls do, with a pause after each call, until stop is called or the test ends.
func repeatedly(r *rig, pause time.Duration, do func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for wake.Sleep(ctx, wait.Paced(pause)) {
			do()
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	r.Cleanup(stop)
	return stop
}

// pulse is a connection or flow on which requests are sent continuously. The same server must
// answer each request with the same bytes.
type pulse struct {
	key    balancer.Key
	conn   net.Conn
	server string
	stop   func()
	beats  int
	mu     sync.Mutex // guards err
	err    error      // the first error
}

// startPulse opens a connection from the client, and keeps it busy until the test ends.
func startPulse(r *rig, key balancer.Key) *pulse {
	r.Helper()
	c, a := r.mustOpen(r.w.client, netip.Addr{}, key)
	return keepBusy(r, key, c, a.Server)
}

// keepBusy sends requests on a connection to a server until the test ends.
func keepBusy(r *rig, key balancer.Key, c net.Conn, server string) *pulse {
	p := &pulse{key: key, conn: c, server: server}
	p.stop = repeatedly(r, 10*time.Millisecond, func() {
		if p.sofar() == nil {
			p.beats++
			p.note(p.beat())
		}
	})
	return p
}

func (p *pulse) beat() error {
	if p.key.Proto == balancer.UDP {
		a, err := lab.AskWithin(p.conn, patience(atOnce))
		if err == nil && a.Server != p.server {
			err = fmt.Errorf("answer from %s, want an answer from %s as before", a.Server, p.server)
		}
		return err
	}
	if err := p.conn.SetDeadline(time.Now().Add(patience(atOnce))); err != nil {
		return err
	}
	sent := bytes.Repeat(fmt.Appendf(nil, "%8d", p.beats), 512)
	got := make([]byte, len(sent))
	if _, err := p.conn.Write(sent); err != nil {
		return err
	}
	if _, err := io.ReadFull(p.conn, got); err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("the echo differs from the %d bytes that were sent", len(sent))
	}
	return nil
}

func (p *pulse) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.err = fmt.Errorf("%s, server %s, after %d requests: %w", p.key, p.server, p.beats, err)
	}
}

func (p *pulse) sofar() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// end stops the pulse, and returns its first error.
func (p *pulse) end() error {
	p.stop()
	return p.sofar()
}

// startPulses starts a pulse on each of a service's frontends: TCP and UDP, over IPv4 and IPv6.
func startPulses(r *rig, vip addrs) []*pulse {
	r.Helper()
	var all []*pulse
	for _, k := range keysOf(vip, balancer.TCP, balancer.UDP) {
		all = append(all, startPulse(r, k))
	}
	return all
}

// checkUndisturbed stops pulses, and checks that none had an error. In failure texts, by describes
// the possible cause.
func checkUndisturbed(r *rig, all []*pulse, by string) {
	r.Helper()
	for _, p := range all {
		if err := p.end(); err != nil {
			r.Errorf("error of traffic during %s = %v, want nil", by, err)
		}
	}
}
