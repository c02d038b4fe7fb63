package daemon_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestCountsClientConnections simulates random histories of connections, changes, reloads, mode
// switches and restarts. The count must survive restarts. It must never exceed the number of
// connections that clients opened, and must reach that number in the end.
func TestCountsClientConnections(t *testing.T) {
	for seed := range uint64(wait.Soak(2, 50)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { countsWhatClientsSent(t, rand.New(rand.NewPCG(seed, 15))) })
	}
}

func countsWhatClientsSent(t *testing.T, r *rand.Rand) {
	lab.New(t)
	lab.Need(t, "iptables-nft")
	names := []config.ModeName{config.UserspaceMode, config.IPTablesMode, config.NFTablesMode}
	n := &node{t: t, dir: t.TempDir()}
	for _, name := range names {
		mode, _ := modes.Find(name)
		n.modes = append(n.modes, mode)
	}
	n.cleansUp()
	server(t, "127.58.9.1:9001", "one")
	server(t, "127.58.9.2:9001", "two")
	mode, weight := names[r.IntN(3)], 1
	write := func() {
		n.configure(`mode = "userspace"`, fmt.Sprintf("mode = %q", mode), fmt.Sprintf(`[iptables]
backend = "nft"
[services.web]
vips = ["127.58.9.9"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.58.9.1", port = 9001 }, { address = "127.58.9.2", port = 9001, weight = %d }]
`, weight))
	}
	write()
	n.start()
	t.Cleanup(func() { n.stop() })
	history, sent := string(mode), uint64(0)
	for range 12 {
		switch r.IntN(4) {
		case 0:
			weight = r.IntN(3)
		case 1:
			mode = names[r.IntN(3)]
		case 2:
			history += "; a restart"
			n.stop()
			n.start()
			if first := n.connections(); first != sent {
				t.Fatalf("initial count of connections = %d, want %d: %s", first, sent, history)
			}
		}
		write()
		if _, err := n.client.Reload(t.Context(), "the test"); err != nil {
			t.Fatal(err)
		}
		some := uint64(r.IntN(8))
		history += fmt.Sprintf("; %s mode, weight %d, %d connections", mode, weight, some)
		wait.For(t, 0, history, func() bool {
			s := n.status()
			return s.Mode.InUse == string(mode) && s.Sync.Pending == 0
		})
		for range some {
			if got := ask("127.58.9.9:8080"); got != "one" && got != "two" {
				t.Fatalf("answer = %q, want \"one\" or \"two\", after %s", got, history)
			}
		}
		sent += some
		wait.For(t, 0, fmt.Sprintf("%d connections to be counted after %s", sent, history), func() bool {
			counted := n.connections()
			if counted > sent {
				t.Fatalf("counted connections = %d, want at most %d: %s", counted, sent, history)
			}
			return counted == sent
		})
	}
}

// newWeightedNode returns a node in a mode, with a service that has two silent endpoints. The
// function weigh sets the endpoints' weights. Even and odd values of i result in different weights.
func newWeightedNode(t *testing.T, name config.ModeName) (n *node, weigh func(i int)) {
	lab.New(t)
	lab.Need(t, "iptables-nft")
	mode, _ := modes.Find(name)
	n = &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	silent, err := net.ListenPacket("udp", "0.0.0.0:5353")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	return n, func(i int) {
		n.configure(`mode = "userspace"`, fmt.Sprintf("mode = %q", name), fmt.Sprintf(`[iptables]
backend = "nft"
[sync]
min_interval = "1ms"
[services.dns]
vips = ["127.58.9.9"]
ports = [{ port = 53, protocol = "udp" }]
endpoints = [{ address = "127.58.9.1", port = 5353, weight = %d }, { address = "127.58.9.2", port = 5353, weight = %d }]
`, 1+i%2*300, 301-i%2*300))
	}
}

// TestCountsOverRestarts changes weights, and stops, kills and starts vipd, while each client sends
// one datagram. No count may decrease or exceed the number of datagrams. Each flow must be counted
// once. Two kinds of flows may be missing: flows that a CPU is processing in a rule when the rule
// is removed, and flows of rules that were replaced after counters were last read and before vipd
// was killed.
func TestCountsOverRestarts(t *testing.T) {
	for _, name := range []config.ModeName{config.NFTablesMode, config.IPTablesMode} {
		t.Run(string(name), func(t *testing.T) { countsOverRestarts(t, name) })
	}
}

func countsOverRestarts(t *testing.T, name config.ModeName) {
	n, weigh := newWeightedNode(t, name)
	changes := 0
	change := func(times int) {
		for i := range times {
			changes++
			weigh(i)
			if _, err := n.client.Reload(t.Context(), "the test"); err != nil {
				t.Fatal(err)
			}
		}
	}
	clients, sent, shown := wait.Load(2000), 0, uint64(0)
	during := func(do func()) {
		done, first := make(chan struct{}), sent
		sent += clients
		go func() {
			defer close(done)
			sendFromClients(t, first, clients, netip.MustParseAddrPort("127.58.9.9:53"))
		}()
		do()
		<-done
	}
	counted := func() uint64 {
		now := n.connections()
		if now < shown || now > uint64(sent) {
			t.Fatalf("counted connections = %d, want at most %d and at least the previous %d", now, sent, shown)
		}
		shown = now
		return now
	}
	bin := program.Bin(t)
	weigh(0)
	n.spawn(bin)
	for range wait.Soak(3, 20) {
		for _, killed := range []bool{false, true} {
			during(func() {
				if !killed {
					change(4)
				}
				n.end(killed)
			})
			during(func() {
				changes++
				weigh(rand.IntN(2))
				n.spawn(bin)
			})
			wait.For(t, 0, fmt.Sprintf("%d connections to be counted (killed: %t)", sent, killed), func() bool { return counted()+between(changes) >= uint64(sent) })
		}
	}
	for range wait.Soak(3, 20) {
		during(func() {
			change(3)
			counted()
			weigh(1)
			_, err := n.client.Reload(t.Context(), "the test") // the last counts of the replaced rules are lost
			if n.end(true); err != nil {
				t.Fatal(err)
			}
		})
		n.spawn(bin)
		counted()
	}
	t.Logf("%d of %d are counted, over kills in the middle of changes", shown, sent)
}

// spawn starts the vipd program in the directory bin, and waits until it is ready.
func (n *node) spawn(bin string) {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "vipd"), "--config", n.file())
	cmd.Stderr = n.t.Output()
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.client = api.NewClient(filepath.Join(n.dir, "run", "vipd.sock"))
	n.end = func(kill bool) {
		n.end = func(bool) {}
		n.client.Close()
		with := os.Interrupt
		if kill {
			with = os.Kill
		}
		if n.t.Failed() {
			with, kill = syscall.SIGQUIT, true // SIGQUIT prints a stack trace of each goroutine
		}
		if err := cmd.Process.Signal(with); err != nil {
			n.t.Error(err)
		}
		if err := cmd.Wait(); err != nil && !kill {
			n.t.Error("error of vipd = ", err)
		}
	}
	n.t.Cleanup(func() { n.end(true) })
	wait.For(n.t, 0, "vipd to be ready", func() bool {
		s, err := n.client.Status(n.t.Context())
		return err == nil && s.Ready
	})
}

// TestCountsWhileServicesChange changes weights, which replaces all counters, while 30,000 clients
// send a datagram each. Each flow must be counted once, except flows that a CPU is processing in a
// rule when the rule is removed.
func TestCountsWhileServicesChange(t *testing.T) {
	for _, name := range []config.ModeName{config.NFTablesMode, config.IPTablesMode} {
		t.Run(string(name), func(t *testing.T) { countsWhileServicesChange(t, name) })
	}
}

// between returns the maximum number of uncounted flows. Whenever a change removes a rule, each CPU
// may be processing a flow in that rule.
func between(changes int) uint64 { return uint64(changes * runtime.NumCPU()) }

func countsWhileServicesChange(t *testing.T, name config.ModeName) {
	n, weigh := newWeightedNode(t, name)
	weigh(0)
	n.start()
	t.Cleanup(func() { n.stop() })
	clients := wait.Load(30_000)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sendFromClients(t, 0, clients, netip.MustParseAddrPort("127.58.9.9:53"))
	}()
	changes := 0
	for sending := true; sending; changes++ {
		weigh(changes)
		if _, err := n.client.Reload(t.Context(), "the test"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-sent:
			sending = false
		default:
		}
	}
	t.Logf("%d changes", changes)
	counted := uint64(0)
	defer func() { t.Logf("%d of %d are counted", counted, clients) }()
	wait.For(t, 0, "every flow to be counted once", func() bool {
		counted = n.connections()
		return counted+between(changes) >= uint64(clients)
	})
	if counted > uint64(clients) {
		t.Error("counted connections exceed the number of clients, want each counted once")
	}
}
