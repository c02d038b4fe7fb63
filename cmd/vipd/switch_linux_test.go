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

// breath is how long a client of a loop pauses before it connects again, so that what clients could notice has the processor,
// too.
const breath = 5 * time.Millisecond

// loop is a closed loop of clients: each connects, asks and hangs up, again and again.
type loop struct {
	t    testing.TB
	done atomic.Int64
	stop func() // ends it and waits
}

// clients starts n clients at the VIP, or fewer in a guest, half of them on the gateway itself. What takes longer than drained may be cut, for a
// machine may stand still for so long, but its client is told.
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
					l.t.Errorf("from %s, after %s: %v", from.Name, time.Since(began), err)
					return
				}
				l.done.Add(1)
				time.Sleep(wait.Paced(breath)) // the pace of the client
			}
		})
	}
	l.stop = func() { cancel(); all.Wait() }
	g.t.Cleanup(l.stop)
	return l
}

// isTimeout reports whether a client was told nothing.
func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// once is one connection of a client, and who answers it.
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

// more waits until n more connections have come to their end.
func (l *loop) more(n int64) {
	l.t.Helper()
	until := l.done.Load() + n
	wait.For(l.t, time.Minute, fmt.Sprintf("%d more connections", n), func() bool { return l.done.Load() >= until || l.t.Failed() })
}

// switching goes from mode to mode under load, on one running vipd: no new connection fails, and those that are open
// live on.
func switching(t *testing.T, names ...string) {
	g := newGateway(t)
	mode := func(name string) string { // drains last as long as the test, on a slow machine, too
		return settings(name, "auto") + "[userspace]\naccess_log = \"access.log\"\n[defaults]\ndrain_timeout = \"1h\"\n"
	}
	g.write(mode(names[0]), 0, 1)
	g.start()
	l := g.clients(8, time.Hour)
	open := map[string]net.Conn{}
	// listed are those that have to be listed: the kernel goes on with those that it translates without vipd.
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
			t.Fatalf("status %+v", s)
		}
		if names[i] == "ipvs" {
			_ = ending.(*net.TCPConn).SetLinger(0) // with a reset, which is over in seconds
		}
		_ = ending.Close()
		if names[i] == "userspace" || names[i] == "ipvs" { // for others the kernel would tell of it two minutes later
			last := netip.MustParseAddrPort(ending.LocalAddr().String())
			lab.Eventually(t, 30*time.Second, "a line of a connection that ended in the mode before", func() error { return g.logged(last) })
		}
		g.reuses(killed)
		l.more(20)
		var shown net.Conn
		for what, c := range open {
			if err := echoes(c); err != nil {
				t.Errorf("in %s mode, the connection %s: %v", name, what, err)
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
			return fmt.Errorf("%v, %w", services, err)
		}
		// What comes between the last reading of a chain and its end is missed: more on a busy machine. What a mode has
		// counted, which must not be lost with it, is far more.
		got, want := services[0].Ports[0].Connections, uint64(l.done.Load())+uint64(len(open))
		if got+want/20 < want {
			return fmt.Errorf("counted %d connections of %d: what a mode counted that was left is lost", got, want)
		}
		return nil
	})
	g.stop()
	g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
	if left := g.rules(); strings.Contains(left, "VIPD") {
		t.Errorf("left:\n%s", left)
	}
}

// lists demands that a connection is listed once, with the endpoint that serves it.
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
		g.t.Errorf("the connection %s is listed with the endpoints %v", what, found)
	}
	if conns := g.connections(dataplane.ConnectionQuery{Client: client}); len(conns) != 1 {
		g.t.Errorf("asked for alone, the connection %s is listed as %v", what, conns)
	}
}

// connections asks until vipd, which may have no time for it at once, lists its connections.
func (g *gateway) connections(q dataplane.ConnectionQuery) (conns []api.Connection) {
	g.t.Helper()
	lab.Eventually(g.t, time.Minute, "a list of connections", func() (err error) {
		conns, err = g.api.Connections(g.t.Context(), q)
		return err
	})
	return conns
}

// status asks until vipd, which may have no time for it at once, says how it is.
func (g *gateway) status() (s api.Status) {
	g.t.Helper()
	lab.Eventually(g.t, time.Minute, "status", func() (err error) { s, err = g.api.Status(g.t.Context()); return err })
	return s
}

// TestIPVSSwitch goes through all modes and back.
func TestIPVSSwitch(t *testing.T) {
	lab.NeedIPVS(t)
	switching(t, "userspace", "nftables", "ipvs", "iptables", "userspace")
}

// TestWithoutIPVS: a kernel that has no IPVS is served by the next best mode, loudly; strict_mode ends with the reason and
// what mends it.
func TestWithoutIPVS(t *testing.T) {
	if err := ipvs.Load(); err == nil {
		t.Skip("needs a kernel without IPVS: this one has it")
	}
	g := newGateway(t)
	strict := settings("ipvs", "auto")
	g.write(strings.Replace(strict, "strict_mode = true", "strict_mode = false", 1), 0, 1)
	g.start()
	if s := g.status(); s.Mode.InUse != "nftables" || s.Mode.Wanted != "ipvs" || !s.Mode.Fallback || !strings.Contains(s.Mode.Reason, "modprobe ip_vs") {
		t.Errorf("mode %+v", s.Mode)
	}
	if got := g.servers(g.client); len(got) != 2 {
		t.Errorf("%v answer", got)
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
		t.Errorf("strict_mode: %v", err)
	}
	g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
}

func TestSwitch(t *testing.T) {
	switching(t, "userspace", "nftables", "iptables", "nftables", "userspace", "iptables")
}

// TestSwitchBackAndForth changes the mode again while the one before still drains, or the switch is going on: what is left
// of a mode is never in the way of the next of its kind.
func TestSwitchBackAndForth(t *testing.T) {
	const drained = time.Second
	for _, intercept := range []string{"auto", "bind"} {
		t.Run(intercept, func(t *testing.T) {
			if intercept == "bind" && !wait.Soaking() {
				t.Skip("make soak runs it: the switch is the same, and the suite of userspace mode has bind")
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
			time.Sleep(wait.Scaled(4 * time.Second)) // what drained ends
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
			err = fmt.Errorf("status %+v", s)
		}
		return err
	})
}

// TestSwitchByFile: the mode changes with the file, without a reload.
func TestSwitchByFile(t *testing.T) {
	g := newGateway(t)
	const liberal = "net.netfilter.nf_conntrack_tcp_be_liberal"
	g.Host().Sysctl(liberal, "0")
	g.write(settings("userspace", "auto"), 0, 1)
	g.start()
	if got := g.Host().ReadSysctl(liberal); got != "1" {
		t.Errorf("%s is %s while redirects lead here", liberal, got)
	}
	g.write(settings("iptables", "auto"), 0, 1)
	wait.For(t, 20*time.Second, "the mode to change", func() bool {
		s, err := g.api.Status(t.Context())
		return err == nil && s.Mode.InUse == "iptables"
	})
	wait.For(t, 20*time.Second, "the redirects to go", func() bool { return !strings.Contains(g.rules(), "vipd-redirect") })
	if _, c := g.ask(g.client); echoes(c) != nil {
		t.Error("no echo after the switch")
	}
	program.Save(t, g.file, "nonsense")
	if _, c := g.ask(g.client); echoes(c) != nil {
		t.Error("no echo after a broken file")
	}
}

// TestBytesOverSwitches: the bytes of a connection that is open all the time are counted once, whichever modes come after each other, in one
// process or another.
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
		if all, err := g.api.Endpoints(t.Context()); err != nil || len(all) > 0 && all[0].Active > 1 { // the mode before drains
			t.Errorf("in %s mode, endpoints %+v, %v, want one live connection", mode, all, err)
		}
		for range 20 {
			if err := echoes(c); err != nil {
				t.Fatalf("%s mode: %v", mode, err)
			}
		}
		if mode == "userspace" {
			continue // in which conntrack is not read
		}
		lab.Eventually(t, 30*time.Second, "bytes in "+mode+" mode", func() error {
			conns, err := g.api.Connections(t.Context(), dataplane.ConnectionQuery{Client: netip.MustParseAddrPort(c.LocalAddr().String())})
			if err != nil || len(conns) != 1 {
				return fmt.Errorf("connections %v, %w", conns, err)
			}
			services, err := g.api.Services(t.Context())
			if err != nil {
				return err
			}
			if p := services[0].Ports[0]; p.In != conns[0].In || p.Out != conns[0].Out || p.In == 0 {
				return fmt.Errorf("%d and %d bytes are counted of a connection with %d and %d", p.In, p.Out, conns[0].In, conns[0].Out)
			}
			return nil
		})
	}
	g.stop()
	g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
}
