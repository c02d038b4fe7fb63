package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/modes"
	"vipd/cmd/vipd/daemon"
	"vipd/dataplane"
	"vipd/test/ipvs"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// breath is a client's pause between two connections. It leaves CPU time for vipd and the servers.
const breath = 20 * time.Millisecond

// loop is a group of clients. Each client repeatedly connects, sends a request and disconnects.
type loop struct {
	t    testing.TB
	done atomic.Int64
	stop func() // stops the clients and waits until they have stopped
}

// clients starts n clients of the VIP, or fewer in a guest. Half of the clients run on the gateway
// itself. A request that takes longer than drained may fail, because a slow machine may have paused
// for that long. The client must then receive an error.
func (g *gateway) clients(n int, drained time.Duration) *loop {
	ctx, cancel := context.WithCancel(g.t.Context())
	l := &loop{t: g.t}
	var all sync.WaitGroup
	for i := range max(2, wait.Load(n)) {
		from := []*lab.NS{g.client, g.Host()}[i%2]
		all.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if _, err := once(from, "10.96.0.10:80"); err != nil && (time.Since(began) < drained || isTimeout(err)) {
					l.t.Errorf("from %s, after %s: error = %v, want no error before the drain ends", from.Name, time.Since(began), err)
					return
				}
				l.done.Add(1)
				time.Sleep(wait.Paced(breath)) // the client's pace
			}
		})
	}
	l.stop = func() { cancel(); all.Wait() }
	g.t.Cleanup(l.stop)
	return l
}

// isTimeout reports whether a client received no answer.
func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// once opens one connection for a client, and returns the server's answer.
func once(from *lab.NS, vip string) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", vip)
	if err != nil {
		return lab.Answer{}, err
	}
	defer c.Close()
	return lab.AskWithin(c, wait.Patience)
}

// more waits until clients have made n more connections.
func (l *loop) more(n int64) {
	l.t.Helper()
	until := l.done.Load() + n
	wait.For(l.t, time.Minute, fmt.Sprintf("%d more connections", n), func() bool { return l.done.Load() >= until || l.t.Failed() })
}

// switching switches a running vipd from one mode to the next under load. No new connection may
// fail, and open connections must survive.
func switching(t *testing.T, names ...string) {
	g := newGateway(t)
	mode := func(name string) string { // the drain timeout is longer than the test, even on a slow machine
		return settings(name, "auto") + "[userspace]\naccess_log = \"access.log\"\n[defaults]\ndrain_timeout = \"1h\"\n"
	}
	g.write(mode(names[0]), 0, 1)
	g.start()
	l := g.clients(4, time.Hour)
	open := map[string]net.Conn{}
	// The mode must list connections that it serves itself. The kernel keeps the connections that
	// it translates, even without vipd.
	translates := func(name string) bool { return name == "iptables" || name == "nftables" }
	listed := func(serving, opened string) bool { return translates(serving) || !translates(opened) }
	var killed netip.AddrPort
	for i, name := range names[1:] {
		l.more(20)
		_, c := g.ask(g.client)
		open[fmt.Sprintf("opened in %s mode, as number %d", names[i], i)] = c
		_, ending := g.ask(g.client)
		g.write(mode(name), 0, 1)
		if _, err := g.api.Reload(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		if s := g.status(); s.Mode.InUse != name || s.Mode.Wanted != name || s.Mode.Fallback || len(s.Problems) > 0 {
			t.Fatalf("status = %+v, want %s mode without fallback and problems", s, name)
		}
		if names[i] == "ipvs" {
			_ = ending.(*net.TCPConn).SetLinger(0) // a reset closes the connection within seconds
		}
		_ = ending.Close()
		if names[i] == "userspace" || names[i] == "ipvs" { // in other modes, the kernel reports only two minutes later that the connection has ended
			last := netip.MustParseAddrPort(ending.LocalAddr().String())
			lab.Eventually(t, 30*time.Second, "a line of a connection that ended in the previous mode", func() error { return g.logged(last) })
		}
		g.reuses(killed)
		l.more(20)
		var shown net.Conn
		for what, c := range open {
			if err := echoes(c); err != nil {
				t.Errorf("%s mode: error on the connection %s = %v, want none", name, what, err)
			}
			if opened := strings.Fields(what)[2]; listed(name, opened) {
				g.lists(c, what)
				shown = c
			}
		}
		if shown != nil {
			g.explains(shown)
		}
		killed = g.kills(name)
	}
	l.stop()
	lab.Eventually(t, 30*time.Second, "counting every connection", func() error {
		services, err := g.api.Services(t.Context())
		if err != nil || len(services) != 1 {
			return fmt.Errorf("services = %v, error = %w", services, err)
		}
		// Connections that arrive after a chain was last read and before it is removed are not
		// counted. On a busy machine, there are more of them. The limit for them is far lower than
		// a mode's total, which must not be lost.
		got, want := services[0].Ports[0].Connections, uint64(l.done.Load())+uint64(len(open))
		if got+want/20 < want {
			return fmt.Errorf("counted connections = %d, want %d: the counts of a previous mode are lost", got, want)
		}
		return nil
	})
	g.stop()
	g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
	if left := g.rules(); strings.Contains(left, "VIPD") {
		t.Errorf("after the switch: rules =\n%s\nwant no rules of vipd", left)
	}
}

// lists checks that a connection is listed once, with the endpoint that serves it.
func (g *gateway) lists(c net.Conn, what string) {
	g.t.Helper()
	client := netip.MustParseAddrPort(c.LocalAddr().String())
	var found []string
	for _, n := range g.connections(dataplane.ConnectionQuery{Service: "web"}) {
		if n.Client == client {
			found = append(found, n.Backend.Addr().String())
		}
	}
	if len(found) != 1 || found[0] != "10.2.0.2" && found[0] != "10.2.1.2" {
		g.t.Errorf("connection %s: endpoints = %v, want one endpoint", what, found)
	}
	if conns := g.connections(dataplane.ConnectionQuery{Client: client}); len(conns) != 1 {
		g.t.Errorf("connection %s: filtered list = %v, want one connection", what, conns)
	}
}

// connections returns vipd's connections. It retries, because vipd may be short of CPU time.
func (g *gateway) connections(q dataplane.ConnectionQuery) (conns []api.Connection) {
	g.t.Helper()
	lab.Eventually(g.t, time.Minute, "a list of connections", func() (err error) {
		conns, err = g.api.Connections(g.t.Context(), q)
		return err
	})
	return conns
}

// status returns vipd's status. It retries, because vipd may be short of CPU time.
func (g *gateway) status() (s api.Status) {
	g.t.Helper()
	lab.Eventually(g.t, time.Minute, "status", func() (err error) { s, err = g.api.Status(g.t.Context()); return err })
	return s
}

// TestIPVSSwitch switches through all modes and back.
func TestIPVSSwitch(t *testing.T) {
	lab.NeedIPVS(t)
	switching(t, "userspace", "nftables", "ipvs", "iptables", "userspace")
}

// TestWithoutIPVS starts vipd on a kernel without IPVS. The next best mode must serve, and a
// problem must be reported. With strict_mode, vipd must refuse to start, and must report the reason
// and the remedy.
func TestWithoutIPVS(t *testing.T) {
	if err := ipvs.Load(); err == nil {
		t.Skip("needs a kernel without IPVS: this one has it")
	}
	g := newGateway(t)
	strict := settings("ipvs", "auto")
	g.write(strings.Replace(strict, "strict_mode = true", "strict_mode = false", 1), 0, 1)
	g.start()
	if s := g.status(); s.Mode.InUse != "nftables" || s.Mode.Wanted != "ipvs" || !s.Mode.Fallback || !strings.Contains(s.Mode.Reason, "modprobe ip_vs") {
		t.Errorf("mode = %+v, want nftables as a fallback from ipvs", s.Mode)
	}
	if got := g.servers(g.client); len(got) != 2 {
		t.Errorf("servers that answered = %v, want 2", got)
	}
	g.write(strings.Replace(strict, `mode = "ipvs"`, `mode = "auto"`, 1), 0, 1)
	wait.For(t, 20*time.Second, "the fallback to end", func() bool {
		s, err := g.api.Status(t.Context())
		return err == nil && !s.Mode.Fallback && s.Mode.InUse == "nftables" && strings.Contains(s.Mode.Reason, "not ipvs")
	})
	g.stop()
	g.write(strict, 0, 1)
	_, err := daemon.New(daemon.Options{ConfigFile: g.file, Log: slog.New(slog.DiscardHandler), Modes: modes.All()})
	if err == nil || !strings.Contains(err.Error(), "strict_mode forbids another") || !strings.Contains(err.Error(), "modprobe ip_vs") {
		t.Errorf("with strict_mode: error = %v, want the reason and the remedy", err)
	}
	g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
}

func TestSwitch(t *testing.T) {
	switching(t, "userspace", "nftables", "iptables", "nftables", "userspace", "iptables")
}

// TestSwitchBackAndForth changes the mode again while the previous mode drains, or during a switch.
// State that a mode left behind must not block the next dataplane of the same kind.
func TestSwitchBackAndForth(t *testing.T) {
	const drained = time.Second
	for _, intercept := range []string{"auto", "bind"} {
		t.Run(intercept, func(t *testing.T) {
			if intercept == "bind" && !wait.Soaking() {
				t.Skip("make soak runs it: the switch is the same, and the suite of userspace mode covers bind")
			}
			g := newGateway(t)
			mode := func(name string) string {
				return settings(name, "auto") + fmt.Sprintf("[userspace]\nintercept = %q\n[defaults]\ndrain_timeout = %q\n", intercept, drained)
			}
			g.write(mode("userspace"), 0, 1)
			g.start()
			l := g.clients(4, drained)
			rng := rand.New(rand.NewPCG(1, 1))
			for range wait.Soak(3, 6) {
				for _, name := range []string{"iptables", "userspace"} {
					g.write(mode(name), 0, 1)
					if rng.IntN(4) > 0 {
						g.serves(name)
					}
					l.more(rng.Int64N(40))
				}
			}
			g.serves("userspace")
			time.Sleep(wait.Scaled(4 * time.Second)) // long enough for the last drain to finish
			l.more(20)
			l.stop()
			g.stop()
			g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
		})
	}
}

// serves waits until a mode serves.
func (g *gateway) serves(mode string) {
	g.t.Helper()
	lab.Eventually(g.t, time.Minute, mode+" mode", func() error {
		s, err := g.api.Status(g.t.Context())
		if err == nil && (s.Mode.InUse != mode || s.Mode.Fallback || len(s.Problems) > 0) {
			err = fmt.Errorf("status = %+v", s)
		}
		return err
	})
}

// TestSwitchByFile changes the mode in the file without requesting a reload. vipd must switch.
func TestSwitchByFile(t *testing.T) {
	g := newGateway(t)
	const liberal = "net.netfilter.nf_conntrack_tcp_be_liberal"
	g.Host().Sysctl(liberal, "0")
	g.write(settings("userspace", "auto"), 0, 1)
	g.start()
	if got := g.Host().ReadSysctl(liberal); got != "1" {
		t.Errorf("userspace mode: %s = %s, want 1", liberal, got)
	}
	g.write(settings("iptables", "auto"), 0, 1)
	wait.For(t, 20*time.Second, "the mode to change", func() bool {
		s, err := g.api.Status(t.Context())
		return err == nil && s.Mode.InUse == "iptables"
	})
	wait.For(t, 20*time.Second, "the end of the redirects", func() bool { return !strings.Contains(g.rules(), "vipd-redirect") })
	if _, c := g.ask(g.client); echoes(c) != nil {
		t.Error("after the switch: echo works = false, want true")
	}
	program.Save(t, g.file, "nonsense")
	if _, c := g.ask(g.client); echoes(c) != nil {
		t.Error("after a broken file: echo works = false, want true")
	}
}

// TestBytesOverSwitches keeps a connection open through switches and restarts. The connection's
// bytes must be counted once in every mode.
func TestBytesOverSwitches(t *testing.T) {
	g := newGateway(t)
	g.Host().Sysctl("net.netfilter.nf_conntrack_acct", "1")
	g.write(settings("nftables", "auto"), 0)
	g.start()
	_, c := g.ask(g.client)
	for i, mode := range []string{"nftables", "iptables", "nftables", "userspace", "nftables", "iptables"} {
		if i == 5 {
			g.stop()
		}
		g.write(settings(mode, "auto"), 0)
		if i == 5 {
			g.start()
		}
		g.serves(mode)
		if all, err := g.api.Endpoints(t.Context()); err != nil || len(all) > 0 && all[0].Active > 1 { // the connection must count once while the previous mode drains
			t.Errorf("%s mode: endpoints = %+v, error = %v, want one live connection", mode, all, err)
		}
		for range 20 {
			if err := echoes(c); err != nil {
				t.Fatalf("%s mode: error = %v", mode, err)
			}
		}
		if mode == "userspace" {
			continue // this mode does not read conntrack
		}
		lab.Eventually(t, 30*time.Second, "bytes in "+mode+" mode", func() error {
			conns, err := g.api.Connections(t.Context(), dataplane.ConnectionQuery{Client: netip.MustParseAddrPort(c.LocalAddr().String())})
			if err != nil || len(conns) != 1 {
				return fmt.Errorf("connections = %v, error = %w", conns, err)
			}
			services, err := g.api.Services(t.Context())
			if err != nil {
				return err
			}
			if p := services[0].Ports[0]; p.In != conns[0].In || p.Out != conns[0].Out || p.In == 0 {
				return fmt.Errorf("counted bytes = %d and %d, want the connection's %d and %d", p.In, p.Out, conns[0].In, conns[0].Out)
			}
			return nil
		})
	}
	g.stop()
	g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
}
