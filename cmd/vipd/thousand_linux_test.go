package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// thousand is the number of endpoints that go down at the same time.
const thousand = 1000

// maxSyncs returns the maximum number of batches for the change, which needed the time took. One to
// three batches are usual. A busy machine needs more, because its checks do not fail at the same
// time. A new batch may start after a pause of more than 50 ms without results, and 200 ms after a
// batch's first result.
func (g *gateway) maxSyncs(took time.Duration) int {
	g.t.Helper()
	var all []api.Endpoint
	lab.Eventually(g.t, time.Minute, "endpoints", func() (err error) { all, err = g.api.Endpoints(g.t.Context()); return err })
	var found []time.Time
	for _, e := range all {
		if e.Health == balancer.HealthDown {
			found = append(found, e.Check.Since)
		}
	}
	slices.SortFunc(found, time.Time.Compare)
	reports := 0
	var first, last time.Time
	for _, at := range found {
		if at.Sub(last) > 50*time.Millisecond || at.Sub(first) > 200*time.Millisecond {
			reports, first = reports+1, at
		}
		last = at
	}
	return 6 + int(took/(2*time.Second)) + reports
}

// syncs returns how many batches the engine has applied.
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
	n, _ := strconv.Atoi(string(found[1])) // the pattern allows only digits
	return n
}

// logged counts the log lines that report one of the thousand endpoints as down.
type logged struct {
	mu    sync.Mutex
	downs map[string]int
}

var aboutOne = regexp.MustCompile(`endpoint is (down|up).* backend=(10\.3\.\S+)`)

func (l *logged) Write(line []byte) (int, error) {
	if m := aboutOne.FindSubmatch(line); m != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one := string(m[2]); string(m[1]) == "down" {
			l.downs[one]++
		} else {
			delete(l.downs, one) // on a busy machine, this endpoint may have failed before
		}
	}
	return len(line), nil
}

// down returns how many endpoints and lines were reported.
func (l *logged) down() (endpoints, lines int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.downs {
		lines += n
	}
	return len(l.downs), lines
}

// TestThousandDown makes a thousand endpoints fail at the same time. They have one address or many,
// and refuse connections or hang. The failures must be detected together and be applied in a few
// batches, and each must have a log line.
func TestThousandDown(t *testing.T) {
	for _, c := range []struct {
		mode      string
		addresses int
		hang      bool
	}{
		{"userspace", 1, false},
		{"userspace", thousand, false},
		{"iptables", 10, true},
	} {
		t.Run(fmt.Sprintf("%s/%d addresses, hang %v", c.mode, c.addresses, c.hang), func(t *testing.T) {
			if c.addresses == thousand && !wait.Soaking() {
				t.Skip("make soak runs it: ten addresses are many")
			}
			g := newPlainGateway(t)
			l := &logged{downs: map[string]int{}}
			g.log = slog.New(slog.NewTextHandler(l, nil))
			end := g.manyServe(c.hang)
			g.writeThousand(c.mode, c.addresses)
			g.start()
			t.Cleanup(func() { g.sweep(c.mode) })
			g.count(balancer.HealthUp, thousand+1)
			g.waitUntilApplied()

			syncs, began := g.syncs(), time.Now()
			end()
			wait.For(t, 30*time.Second, "a thousand endpoints to be down", func() bool { n, _ := l.down(); return n == thousand })
			g.count(balancer.HealthDown, thousand)
			g.waitUntilApplied()
			took := time.Since(began)
			syncs = g.syncs() - syncs
			most := g.maxSyncs(took)
			t.Logf("%d syncs in %v, %d at most", syncs, took.Round(time.Millisecond), most)
			if syncs < 1 || syncs > most {
				t.Errorf("syncs = %d in %v, want at most %d", syncs, took, most)
			}
			if _, lines := l.down(); lines != thousand {
				t.Errorf("log lines for endpoints that are down = %d, want %d", lines, thousand)
			}
			if got := g.servers(g.client); !slices.Equal(got, []string{"s1"}) {
				t.Errorf("servers that answered = %v, want only s1", got)
			}
		})
	}
}

// writeThousand writes a configuration that has a service with one endpoint on the first server,
// and a thousand endpoints on addresses of the second server.
func (g *gateway) writeThousand(mode string, addresses int) {
	g.t.Helper()
	var text strings.Builder
	text.WriteString(strings.Replace(settings(mode, "nft"), `http = ""`, `http = "127.0.0.1:0"`, 1))
	text.WriteString("[services.web]\nvips = [\"10.96.0.10\"]\nports = [{ port = 80, target_port = 8080 }]\n" +
		"health = { type = \"tcp\" }\nendpoints = [{ address = \"10.2.0.2\" }")
	for i := range thousand {
		n := i % addresses
		fmt.Fprintf(&text, ", { address = \"10.3.%d.%d\", port = %d }", n/250, 1+n%250, firstOfMany+i)
	}
	text.WriteString("]\n")
	program.Save(g.t, g.file, text.String())
}

// firstOfMany is the first of a thousand ports.
const firstOfMany = 10000

// manyServe makes the second server accept connections on a thousand ports at each address in
// 10.3.0.0/16. After a call to end, the ports refuse connections or, if hang is true, hang.
func (g *gateway) manyServe(hang bool) (end func()) {
	t, ns := g.t, g.ends[1]
	t.Helper()
	g.Host().Exec("ip", "route", "add", "10.3.0.0/16", "via", "10.2.1.2")
	ns.Exec("ip", "route", "add", "local", "10.3.0.0/16", "dev", "lo")
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
	closing := sync.OnceFunc(func() { _ = ln.Close(); running.Wait() })
	t.Cleanup(closing)
	if hang {
		return func() { ns.Exec("iptables", "-I", "INPUT", "-p", "tcp", "--dport", "9000", "-j", "DROP"); closing() }
	}
	return closing
}

func (g *gateway) waitUntilApplied() {
	g.t.Helper()
	wait.For(g.t, 20*time.Second, "everything to be applied", func() bool {
		s, err := g.api.Status(g.t.Context())
		return err == nil && s.Sync.Pending == 0 && s.Sync.Failing == 0
	})
}

// count waits until want endpoints have the verdict.
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
			return fmt.Errorf("endpoints with this verdict = %d, error = %w", n, err)
		}
		return nil
	})
}
