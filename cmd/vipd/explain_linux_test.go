package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/dataplane"
	"vipd/dataplane/explain"
	"vipd/test/lab"
	"vipd/test/wait"
)

// explains checks how vipd explains the open connection in the current mode, and the result of a
// connection from this node.
func (g *gateway) explains(open net.Conn) {
	g.t.Helper()
	client := netip.MustParseAddrPort(open.LocalAddr().String())
	key := balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: balancer.TCP}
	var e api.Explanation
	lab.Eventually(g.t, time.Minute, "an explanation", func() (err error) { // vipd may be short of CPU time
		if e, err = g.api.Explain(g.t.Context(), client, key, true); err == nil && e.Live != nil && e.Live.Error != "" {
			err = errors.New(e.Live.Error) // this node's connection may also be late
		}
		for _, s := range e.Steps { // listing the host's connections may also take long, because other tests have connections too
			if strings.Contains(s.Text, "was not complete in time") {
				err = errors.New(s.Text)
			}
		}
		return err
	})
	if e.Verdict != explain.Served || len(e.Endpoints) != 2 || e.Endpoints[0].Part != 0.5 || e.Endpoints[1].Part != 0.5 || len(e.Objects) == 0 {
		g.t.Errorf("answer = %+v, want two endpoints, each for half of the clients", e.Answer)
	}
	for _, s := range e.Steps {
		if s.Wrong {
			g.t.Errorf("step %q failed, want no failure: %s", s.What, s.Text)
		}
	}
	if len(e.Existing) != 1 || e.Existing[0].Client != client {
		g.t.Errorf("%s: existing connections = %+v, want one connection; steps: %+v", client, e.Existing, e.Steps)
	}
	if l := e.Live; l == nil || l.Error != "" || e.Probability(l.Endpoint) == 0 || l.Connected <= 0 || l.Taken < l.Connected {
		g.t.Errorf("live connection = %+v, want an answer", l)
	}
	for at, want := range map[string]explain.Answer{
		"10.96.0.10:81": {Verdict: explain.Refused, Summary: "no service on 10.96.0.10 uses 81/tcp; its services use 80/tcp"},
		"10.96.0.11:80": {Verdict: explain.Elsewhere, Summary: "the most similar frontend is 10.96.0.10:80/tcp (web)"},
		"10.1.0.1:80":   {Verdict: explain.Elsewhere, Summary: "this node's own address"},
	} {
		k, _ := balancer.ParseKey(at)
		lab.Eventually(g.t, time.Minute, "an explanation of "+at, func() (err error) { e, err = g.api.Explain(g.t.Context(), client, k, false); return err })
		has := func(s explain.Step) bool { return strings.Contains(s.Text, want.Summary) }
		if e.Verdict != want.Verdict || !slices.ContainsFunc(e.Steps, has) {
			g.t.Errorf("%s: answer = %+v; want %s and %q", at, e.Answer, want.Verdict, want.Summary)
		}
	}
}

// kills checks that vipd reports when connections start and end, that connections can be killed,
// and that the access log contains them. In ipvs mode, the kernel can't kill single connections. It
// returns the address of the last client.
func (g *gateway) kills(mode string) (client netip.AddrPort) {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.t.Context())
	var mu sync.Mutex
	var following sync.WaitGroup
	told := map[string]bool{}
	following.Go(func() {
		_ = g.api.FollowConnections(ctx, dataplane.ConnectionQuery{Service: "web"}, func(e api.ConnectionEvent) error {
			mu.Lock()
			defer mu.Unlock()
			if e.Connection != nil {
				told[e.Event+" "+e.Connection.Client.String()] = true
			}
			return nil
		})
	})
	defer following.Wait()
	defer cancel()
	seen := func(event string, c net.Conn) error {
		mu.Lock()
		defer mu.Unlock()
		if !told[event+" "+c.LocalAddr().String()] {
			return fmt.Errorf("no event %s for %s", event, c.LocalAddr())
		}
		return nil
	}
	var opened, begun []net.Conn // a connection that was opened before the subscription is never reported
	defer func() {
		for _, c := range opened { // a proxy waits for open connections before it exits
			_ = c.Close()
		}
	}()
	lab.Eventually(g.t, 30*time.Second, "events of connections that start", func() error {
		_, another := g.ask(g.client)
		opened = append(opened, another)
		begun = slices.DeleteFunc(slices.Clone(opened), func(c net.Conn) bool { return seen(api.Began, c) != nil })
		if len(begun) < 4 { // with two endpoints, every second client reaches the same endpoint again
			return fmt.Errorf("events arrived for %d of %d connections, want at least 4", len(begun), len(opened))
		}
		return nil
	})
	for _, c := range begun {
		client = netip.MustParseAddrPort(c.LocalAddr().String())
		k, err := g.api.Kill(ctx, dataplane.ConnectionQuery{Client: client}, "ana")
		if mode == "ipvs" {
			if err == nil {
				g.t.Error("Kill of a single IPVS connection succeeded, want an error; result = ", k)
			}
			return netip.AddrPort{}
		}
		if err != nil || k.Connections != 1 {
			g.t.Errorf("ending a connection in %s mode: result = %+v, error = %v, want 1", mode, k, err)
		}
		if err := echoes(c); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			g.t.Errorf("killed connection in %s mode: error = %v, want a reset", mode, err)
		}
		lab.Eventually(g.t, 30*time.Second, "being told of the connection's end", func() error { return seen(api.Ended, c) })
		lab.Eventually(g.t, 30*time.Second, "a line of the connection in the access log", func() error { return g.logged(client) })
	}
	return client
}

// logged returns an error until the access log has a line for a client's connection.
func (g *gateway) logged(client netip.AddrPort) error {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(g.file), "access.log"))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " service=web client="+client.String()+" ") && strings.Contains(line, "10.96.0.10:80/tcp") {
			return nil
		}
	}
	return fmt.Errorf("the access log has no line for %s: %v\n%s", client, err, text)
}

// reuses checks that a client is served on the source port of a connection that was killed.
func (g *gateway) reuses(client netip.AddrPort) {
	g.t.Helper()
	if !client.IsValid() {
		return
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), wait.Patience)
	defer cancel()
	c, err := g.client.DialFrom(ctx, "tcp", client, "10.96.0.10:80")
	if err == nil {
		defer c.Close()
		_, err = lab.AskWithin(c, wait.Patience)
	}
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) { // another connection uses the port
		g.t.Errorf("from %s, the port of a killed connection: error = %v, want no error, or an error that the port is in use", client, err)
	}
}
