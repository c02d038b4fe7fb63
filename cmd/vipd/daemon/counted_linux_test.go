package daemon_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestCountsWhatClientsSent has random histories of connections, changes, reloads, switches between modes and restarts: what is counted is
// what clients have opened, from the start on, and never more. A restart in a kernel mode begins with what the kernel has counted since its
// rules were last written, and not with less.
func TestCountsWhatClientsSent(t *testing.T) {
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
	history, sent, kept := string(mode), uint64(0), uint64(0)
	for range 12 {
		switch r.IntN(4) {
		case 0:
			weight, kept = r.IntN(3), 0
		case 1:
			mode, kept = names[r.IntN(3)], 0
		case 2:
			if mode == config.UserspaceMode {
				kept = 0
			}
			history += "; a restart"
			n.stop()
			n.start()
			sent = n.firstCount(history, kept, sent)
			kept = sent
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
				t.Fatalf("%q answers after %s", got, history)
			}
		}
		sent, kept = sent+some, kept+some
		wait.For(t, 0, fmt.Sprintf("%d connections to be counted after %s", sent, history), func() bool {
			counted := n.connections()
			if counted > sent {
				t.Fatalf("%d connections are counted of %d: %s", counted, sent, history)
			}
			return counted == sent
		})
	}
}

// firstCount waits until a restarted vipd shows how many connections it has counted, which are these at least and at most.
func (n *node) firstCount(history string, least, most uint64) uint64 {
	n.t.Helper()
	shown := ""
	wait.For(n.t, 0, "connections to be counted after "+history, func() bool {
		shown = n.metric(`vipd_service_connections_total{port="",service="web"}`)
		return shown != ""
	})
	first, err := strconv.ParseUint(shown, 10, 64)
	if err != nil || first < least || first > most {
		n.t.Fatalf("%s connections are counted at first, want %d to %d: %s", shown, least, most, history)
	}
	return first
}

// TestCountsWhileServicesChange: each of 30,000 clients sends a datagram while weights change, which replaces all that counts. Each
// flow is counted once.
func TestCountsWhileServicesChange(t *testing.T) {
	for _, name := range []config.ModeName{config.NFTablesMode, config.IPTablesMode} {
		t.Run(string(name), func(t *testing.T) { countsWhileServicesChange(t, name) })
	}
}

func countsWhileServicesChange(t *testing.T, name config.ModeName) {
	lab.New(t)
	lab.Need(t, "iptables-nft")
	mode, _ := modes.Find(name)
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	weigh := func(one, two int) {
		n.configure(`mode = "userspace"`, fmt.Sprintf("mode = %q", name), fmt.Sprintf(`[iptables]
backend = "nft"
[sync]
min_interval = "1ms"
[services.dns]
vips = ["127.58.9.9"]
ports = [{ port = 53, protocol = "udp" }]
endpoints = [{ address = "127.58.9.1", port = 5353, weight = %d }, { address = "127.58.9.2", port = 5353, weight = %d }]
`, one, two))
	}
	weigh(1, 1)
	n.start()
	t.Cleanup(func() { n.stop() })
	silent, err := net.ListenPacket("udp", "0.0.0.0:5353")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	clients := wait.Load(30_000)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		crowds(t, 0, clients, netip.MustParseAddrPort("127.58.9.9:53"))
	}()
	changes := 0
	for sending := true; sending; changes++ {
		weigh(1+changes%2*300, 301-changes%2*300)
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
	wait.For(t, 0, "every flow to be counted once", func() bool {
		counted := n.metric(`vipd_service_connections_total{port="",service="dns"}`)
		return counted == fmt.Sprint(clients)
	})
}
