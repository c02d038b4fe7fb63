package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// thousand is how many endpoints go down at once.
const thousand = 1000

// syncs is how often the engine had work, so far.
func (g *gateway) syncs() int {
	g.t.Helper()
	r, err := http.Get("http://" + g.daemon.Web().String() + "/metrics")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	found := regexp.MustCompile(`vipd_sync_duration_seconds_count\{kind="partial"\} (\d+)`).FindSubmatch(text)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(found[1])) // by the pattern
	return n
}

// logged keeps what the daemon logs.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// downs counts the lines that say of one of the thousand that it is down.
func (l *logged) downs() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "is down") && strings.Contains(line, "10.2.1.2:") {
			n++
		}
	}
	return n
}

// TestThousandDown: what a thousand endpoints cost that go down at one moment depends on how long it takes until all are
// found out, which their checks, spread over the interval, take; not on how many they are. Each is a line of the log.
func TestThousandDown(t *testing.T) {
	for mode, minInterval := range map[string]time.Duration{"userspace": 100 * time.Millisecond, "iptables": time.Second} {
		t.Run(mode, func(t *testing.T) {
			g := newPlainGateway(t)
			l := &logged{}
			g.log = slog.New(slog.NewTextHandler(l, nil))
			end := manyPorts(t, g.ends[1])
			g.writeThousand(mode, minInterval)
			g.start()
			t.Cleanup(func() { g.sweep(mode) })
			g.count(balancer.HealthUp, thousand+1)
			g.settled()

			syncs, began, told := g.syncs(), time.Now(), l.downs()
			end()
			g.count(balancer.HealthDown, thousand)
			g.settled()
			took := time.Since(began)
			syncs = g.syncs() - syncs
			t.Logf("%s mode: %d syncs in %v", mode, syncs, took.Round(time.Millisecond))
			if most := int(took/minInterval) + 1; syncs == 0 || syncs > most {
				t.Errorf("%d syncs in %v, want at most %d", syncs, took, most)
			}
			if lines := l.downs() - told; lines != thousand {
				t.Errorf("%d lines of the log say that an endpoint is down, want %d", lines, thousand)
			}
			if got := g.servers(g.client); !slices.Equal(got, []string{"s1"}) {
				t.Errorf("%v answer, want s1 alone", got)
			}
		})
	}
}

// writeThousand writes the configuration: a service with the first server, and a thousand endpoints at the second.
func (g *gateway) writeThousand(mode string, minInterval time.Duration) {
	g.t.Helper()
	var text strings.Builder
	text.WriteString(strings.Replace(settings(mode, "nft"), `http = ""`, `http = "127.0.0.1:0"`, 1))
	fmt.Fprintf(&text, "[sync]\nmin_interval = %q\n", minInterval)
	text.WriteString("[services.web]\nvips = [\"10.96.0.10\"]\nports = [{ port = 80, target_port = 8080 }]\n" +
		"health = { type = \"tcp\", interval = \"2s\", timeout = \"1500ms\" }\nendpoints = [{ address = \"10.2.0.2\" }")
	for i := range thousand {
		fmt.Fprintf(&text, ", { address = \"10.2.1.2\", port = %d }", firstOfMany+i)
	}
	text.WriteString("]\n")
	if err := os.WriteFile(g.file, []byte(text.String()), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// firstOfMany is the first of a thousand ports.
const firstOfMany = 10000

// manyPorts has one listener serve a thousand ports of a namespace, until end or the end of the test.
func manyPorts(t *testing.T, ns *lab.NS) (end func()) {
	t.Helper()
	ns.Exec("iptables", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", fmt.Sprintf("%d:%d", firstOfMany, firstOfMany+thousand-1),
		"-j", "REDIRECT", "--to-ports", "9000")
	ln, err := ns.Listen("tcp", ":9000")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	})
	end = func() { _ = ln.Close(); running.Wait() }
	t.Cleanup(end)
	return end
}

// settled waits until all that is wanted is carried out.
func (g *gateway) settled() {
	g.t.Helper()
	wait.For(g.t, 20*time.Second, "what is known to be carried out", func() bool {
		s, err := g.api.Status(g.t.Context())
		return err == nil && s.Sync.Pending == 0 && s.Sync.Failing == 0
	})
}

// count waits until so many endpoints are found up or down.
func (g *gateway) count(verdict balancer.Verdict, want int) {
	g.t.Helper()
	lab.Eventually(g.t, 30*time.Second, fmt.Sprintf("%d endpoints to be %s", want, verdict), func() error {
		all, err := g.api.Endpoints(g.t.Context())
		n := 0
		for _, e := range all {
			if e.Health == verdict {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d are, %w", n, err)
		}
		return nil
	})
}
