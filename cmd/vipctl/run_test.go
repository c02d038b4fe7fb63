package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/internal/table"
	"vipd/test/wait"
)

// session runs command lines in this process, against a fakeDaemon.
type session struct {
	*fakeDaemon
	cli.World
	out, err *notice
}

// notice is a buffer that reports each write.
type notice struct {
	mu      sync.Mutex
	b       bytes.Buffer
	written func(all string) // called at each write with the text so far
}

func (n *notice) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.b.Write(p)
	if n.written != nil {
		n.written(n.b.String())
	}
	return len(p), nil
}

func (n *notice) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.String()
}

func newSession(t *testing.T) *session {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d.sock")
	d, stop, err := serveFake(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		err := goleak.Find()
		for again := 0; err != nil && again < 15; again++ { // on a busy machine, requests may take longer than a second
			err = goleak.Find()
		}
		if err != nil {
			t.Error(err)
		}
	})
	s := &session{fakeDaemon: d, out: &notice{}, err: &notice{}}
	getenv := func(name string) string { return map[string]string{"SUDO_USER": "ana"}[name] }
	s.World = cli.World{Stdout: s.out, Stderr: s.err, Getenv: getenv, Now: time.Now}
	t.Setenv("VIPCTL_SOCKET", socket)
	return s
}

// run runs a command line, which may use any verb.
func run(ctx context.Context, w cli.World, args []string) int { return cli.Run(ctx, w, verbs(), args) }

func allVerbs() (all []*cli.Verb) {
	for _, g := range verbs() {
		all = append(all, g.Verbs...)
	}
	return all
}

func (s *session) run(ctx context.Context, line ...string) int { return run(ctx, s.World, line) }

func TestWatchShowsEachChangeUntilInterrupted(t *testing.T) {
	for _, test := range []struct {
		name     string
		terminal bool
		want     string
	}{
		{"appends", false, "NAME  VIPS        PORTS   UP   PROBLEMS\ndns   10.96.0.53  53/udp  1/1  -\n\nNAME  VIPS        PORTS   UP   PROBLEMS\ndns   10.96.0.53  53/udp  0/1  -\n"},
		{"redraws", true, "\x1b[H\x1b[2JNAME  VIPS        PORTS   UP   PROBLEMS\ndns   10.96.0.53  53/udp  1/1  -\n\x1b[H\x1b[2JNAME  VIPS        PORTS   UP   PROBLEMS\ndns   10.96.0.53  53/udp  0/1  -\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSession(t)
			s.OutTerminal = test.terminal
			ctx, interrupt := context.WithTimeout(t.Context(), wait.Patience)
			defer interrupt()
			var once sync.Once
			s.out.written = func(all string) {
				if strings.Contains(all, "0/1") {
					interrupt()
				} else if strings.Contains(all, "1/1") {
					once.Do(func() { s.change(func() { s.services[0].Endpoints[0].State = balancer.Down }) })
				}
			}
			if code := s.run(ctx, "get", "services", "dns", "-w"); code != cli.ExitDone {
				t.Errorf("exit code = %d, want %d; stderr: %s", code, cli.ExitDone, s.err)
			}
			if d := cmp.Diff(test.want, s.out.String()); d != "" {
				t.Errorf("output (-want +got):\n%s", d)
			}
		})
	}
}

// TestWatchContinuesAfterRestart restarts the daemon during a watch. Only changes may be shown. The
// watch must fail if the daemon never ran, or if the output can't be written.
func TestWatchContinuesAfterRestart(t *testing.T) {
	s := newSession(t)
	ctx, interrupt := context.WithTimeout(t.Context(), wait.Patience)
	defer interrupt()
	s.out.written = func(all string) {
		if strings.Contains(all, "0/1") {
			interrupt()
		}
	}
	socket := os.Getenv("VIPCTL_SOCKET")
	ended := make(chan int)
	go func() { ended <- s.run(ctx, "get", "services", "dns", "-w") }()
	wait.For(t, 5*time.Second, "the first state", func() bool { return strings.Contains(s.out.String(), "1/1") })
	_ = s.server.Close()
	wait.For(t, 5*time.Second, "the daemon to be missed", func() bool { return strings.HasSuffix(s.err.String(), "; waiting for vipd\n") })
	d, stop, err := serveFake(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	wait.For(t, 10*time.Second, "the daemon to be back", func() bool { return strings.HasSuffix(s.err.String(), "vipctl: vipd answers again\n") })
	d.change(func() { d.services[1].Origin.Line++ }) // a change that is not shown
	d.change(func() { d.services[0].Endpoints[0].State = balancer.Down })
	if code := <-ended; code != cli.ExitDone {
		t.Errorf("exit code = %d, want %d", code, cli.ExitDone)
	}
	const state = "NAME  VIPS        PORTS   UP   PROBLEMS\ndns   10.96.0.53  53/udp  %s  -\n"
	if d := cmp.Diff(fmt.Sprintf(state+"\n"+state, "1/1", "0/1"), s.out.String()); d != "" {
		t.Errorf("output (-want +got):\n%s", d)
	}
	want := "vipctl: following services: vipd at " + socket + " cut the answer short; waiting for vipd\nvipctl: vipd answers again\n"
	if got := s.err.String(); got != want {
		t.Errorf("stderr = %q, want %q", got, want)
	}
	if code := s.run(t.Context(), "--socket", socket+"x", "status", "-w"); code != cli.ExitFailed {
		t.Errorf("exit code without a daemon = %d, want %d", code, cli.ExitFailed)
	}
	s.Stdout = brokenOutput{}
	if code := s.run(t.Context(), "status", "-w"); code != cli.ExitFailed {
		t.Errorf("exit code with a closed output = %d, want %d", code, cli.ExitFailed)
	}
}

// brokenOutput is a writer whose writes fail.
type brokenOutput struct{}

func (brokenOutput) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

func TestDrainWaitInterrupted(t *testing.T) {
	s := newSession(t)
	s.ErrTerminal = true
	ctx, interrupt := context.WithTimeout(t.Context(), wait.Patience)
	defer interrupt()
	s.err.written = func(all string) {
		if strings.Contains(all, "7 connections left") {
			interrupt()
		}
	}
	if code := s.run(ctx, "drain", "--wait", "web", "192.168.1.11", "--reason", "r", "--timeout", "90s"); code != cli.ExitInterrupted {
		t.Errorf("exit code = %d, want %d", code, cli.ExitInterrupted)
	}
	want := "vipctl: interrupted with 7 connections left; the drain stays in place, \"vipctl undrain web 192.168.1.11\" removes it\n"
	if got := s.err.String(); !strings.HasSuffix(got, want) {
		t.Errorf("stderr = %q, want %q at the end", got, want)
	}
	yes := true
	asked := []api.OverrideRequest{{Service: "web", Address: "192.168.1.11", Draining: &yes, Timeout: 90 * time.Second, By: "ana", Reason: "r"}}
	if d := cmp.Diff(asked, s.overrideRequests); d != "" {
		t.Errorf("requests to the daemon (-want +got):\n%s", d)
	}
}

func TestDrainWaitIsNotDoneBeforeItIsApplied(t *testing.T) {
	targets := []api.OverrideTarget{{Service: "web", Address: "10.0.0.1"}, {Service: "web", Address: "[fd00::1]:80"}}
	endpoint := func(address string, state balancer.BackendState, active uint64) api.Endpoint {
		return api.Endpoint{Service: "web", Address: address, State: state, Active: active}
	}
	for _, test := range []struct {
		name      string
		endpoints []api.Endpoint
		left      uint64
		closed    bool
	}{
		{"not applied yet", []api.Endpoint{endpoint("10.0.0.1:80", balancer.Active, 0)}, 0, false},
		{"busy", []api.Endpoint{endpoint("10.0.0.1:80", balancer.Draining, 2), endpoint("10.0.0.1:81", balancer.Draining, 3)}, 5, true},
		{"idle", []api.Endpoint{endpoint("10.0.0.1:80", balancer.Draining, 0)}, 0, true},
		{"others are not waited for", []api.Endpoint{endpoint("10.0.0.2:80", balancer.Active, 9), endpoint("[fd00::1]:81", balancer.Active, 9)}, 0, true},
		{"one port of it", []api.Endpoint{endpoint("[fd00::1]:80", balancer.Draining, 4)}, 4, true},
		{"a port without a frontend", []api.Endpoint{endpoint("10.0.0.1:80", balancer.Draining, 0), endpoint("10.0.0.1:81", "unused", 0)}, 0, true},
		{"gone", nil, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if left, closed := countTargets(test.endpoints, targets); left != test.left || closed != test.closed {
				t.Errorf("left = %d, closed = %v; want %d, %v", left, closed, test.left, test.closed)
			}
		})
	}
}

// TestDrainWaitsForRemovedService removes a draining endpoint, or its service, from the
// definitions. The drain must still wait for the open connections.
func TestDrainWaitsForRemovedService(t *testing.T) {
	for name, remove := range map[string]func(*fakeDaemon){
		"endpoint": func(d *fakeDaemon) { d.services[1].Endpoints = nil },
		"service":  func(d *fakeDaemon) { d.services = d.services[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t)
			s.ErrTerminal = true
			waited := false
			s.err.written = func(all string) {
				switch {
				case strings.HasSuffix(all, "7 connections left"):
					s.change(func() { remove(s.fakeDaemon) })
				case strings.Contains(all, "1 connection left") && !waited:
					waited = true
					s.change(s.idle)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
			defer cancel()
			if code := s.run(ctx, "drain", "--wait", "web", "192.168.1.11"); code != cli.ExitDone {
				t.Errorf("exit code = %d, want 0: %s", code, s.err)
			}
			if !waited {
				t.Error("drain ended before its last connection, want it to wait")
			}
			if want := "drained: 2 endpoints, no connections left\n"; !strings.HasSuffix(s.out.String(), want) {
				t.Errorf("stdout = %q, want %q at the end", s.out, want)
			}
		})
	}
}

// TestDrainReportsCutConnections waits for drains whose connections end before or after the
// timeout. The message may contain the number of cut connections only if they end after the
// timeout.
func TestDrainReportsCutConnections(t *testing.T) {
	for _, test := range []struct {
		name string
		late time.Duration // the time from the start of the drain until the connections end
		want string
	}{
		{"before its time", 0, "drained: 2 endpoints, no connections left\n"},
		{"by its time", 91 * time.Second, "drained: 2 endpoints, no connections left: up to 7 connections were cut, because they did not end in time\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSession(t)
			s.ErrTerminal = true
			var late atomic.Int64
			s.Now = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
			s.err.written = func(all string) {
				if strings.HasSuffix(all, "7 connections left") {
					late.Store(int64(test.late))
					s.change(s.idle)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
			defer cancel()
			if code := s.run(ctx, "drain", "--wait", "web", "192.168.1.11", "--timeout", "90s"); code != cli.ExitDone {
				t.Errorf("exit code = %d, want 0: %s", code, s.err)
			}
			if got := s.out.String(); !strings.HasSuffix(got, test.want) {
				t.Errorf("stdout = %q, want %q at the end", got, test.want)
			}
		})
	}
}

func TestColorFlagAndTerminal(t *testing.T) {
	s := newSession(t)
	for _, color := range []bool{false, true} {
		s.Color = color
		for _, line := range []string{"status", "get services", "get endpoints", "get frontends", "describe service web"} {
			s.out.b.Reset()
			s.run(t.Context(), strings.Fields(line)...)
			if got := strings.Contains(s.out.String(), "\x1b["); got != color {
				t.Errorf("%s, color %v: colors in the output = %v, want the opposite", line, color, got)
			}
		}
		if s.err.String() != "" {
			t.Errorf("stderr = %s, want none", s.err)
		}
	}
}

// TestHelpOfEachVerb reads each verb's help. Each help text must contain the usage and a valid
// example, and no line may be wider than 80 columns.
func TestHelpOfEachVerb(t *testing.T) {
	s := newSession(t)
	for _, v := range append(allVerbs(), nil) {
		if v != nil && v.Hidden() {
			continue
		}
		line, usage := []string{"--help"}, "vipctl - "
		if v != nil {
			line, usage = []string{v.Name, "--help"}, v.Usage()+"\n"
		}
		s.out.b.Reset()
		if code := s.run(t.Context(), line...); code != cli.ExitDone {
			t.Errorf("%q: exit code = %d, want 0: %s", line, code, s.err)
		}
		got := s.out.String()
		if !strings.HasPrefix(got, usage) {
			t.Errorf("%q: help starts with %.60q, want %q", line, got, usage)
		}
		for _, l := range strings.Split(got, "\n") {
			if table.Width(l) > 80 || strings.HasSuffix(l, " ") {
				t.Errorf("%q: a line has %d columns, want at most 80: %q", line, table.Width(l), l)
			}
		}
		if v == nil {
			continue
		}
		for _, part := range []string{v.Example, "\nOther flags: --socket"} {
			if !strings.Contains(got, part) {
				t.Errorf("%q: help lacks %q", line, part)
			}
		}
		if v.Brief == "" || v.About == "" || len(v.Brief) > 65 {
			t.Errorf("%s: Brief = %q, want a short phrase", v.Name, v.Brief)
		}
	}
}

// TestTablesFitEightyColumns lists names of common lengths: services of up to 20 letters, IPv4 and
// short IPv6 addresses, and port names of up to 8 letters. No line may be wider than 80 columns.
func TestTablesFitEightyColumns(t *testing.T) {
	s := newSession(t)
	long := balancer.Name("payment-gateway-prod")
	s.change(func() {
		service := &s.services[1]
		service.Name = long
		service.VIPs = []string{"fd00:10:96::1:23", "10.196.110.110"}
		for i := range service.Endpoints {
			e := &service.Endpoints[i]
			e.Service, e.Active, e.Connections, e.Weight = long, 12345, 1234567, 100
			e.Address = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("192.168.210.%d", 210+i)), 18443).String()
			if e.Port != "" {
				e.Port = "metrics"
			}
		}
		for i := range s.frontends {
			s.frontends[i].Service, s.frontends[i].Port = long, "metrics"
		}
		for i := range s.conns {
			s.conns[i].Client = netip.MustParseAddrPort("192.168.200.200:51234")
			s.conns[i].Since = time.Now().Add(-26 * time.Hour)
		}
	})
	for _, line := range []string{"get services", "get endpoints", "get frontends", "conns", "diff"} {
		s.out.b.Reset()
		s.run(t.Context(), strings.Fields(line)...)
		for l := range strings.Lines(s.out.String()) {
			if w := table.Width(strings.TrimSuffix(l, "\n")); w > 80 {
				t.Errorf("%s: a line has %d columns, want at most 80:\n%s", line, w, l)
			}
		}
	}
}

// FuzzTOMLString prints definitions with arbitrary text as TOML. A TOML parser must read the same
// definitions.
func FuzzTOMLString(f *testing.F) {
	for _, text := range []string{"", "a", `"`, `\`, "\n\t\r\x00\x1f\x7f", "é東\u2028", "'''", "\"\"\""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		definition := map[string]any{
			"vips": []any{text}, "list": []any{map[string]any{"a": text, text: 1.0}, map[string]any{}}, "n": 65535.0, "yes": true,
			"table": map[string]any{"x": []any{}},
		}
		got := servicesTOML([]api.Service{{Name: "a", Definition: definition}})
		var read struct {
			Services map[string]struct {
				VIPs []string         `toml:"vips"`
				List []map[string]any `toml:"list"`
				N    int              `toml:"n"`
				Yes  bool             `toml:"yes"`
			} `toml:"services"`
		}
		if err := toml.Unmarshal([]byte(got), &read); err != nil {
			t.Fatalf("parsing %q: error = %v, want none; TOML:\n%s", text, err, got)
		}
		a := read.Services["a"]
		if !slices.Equal(a.VIPs, []string{text}) || a.N != 65535 || !a.Yes || len(a.List) != 2 || a.List[0][text] == nil {
			t.Errorf("parsed value = %+v, want %q; TOML:\n%s", a, text, got)
		}
	})
}

func TestRoughly(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 59 * time.Second: "59s", 65 * time.Second: "1m5s", 25 * time.Minute: "25m", 2*time.Hour + time.Second: "2h",
		90 * time.Minute: "1h30m", 49 * time.Hour: "2d1h", 400 * 24 * time.Hour: "400d", -3 * time.Second: "3s",
	} {
		if got := roughly(d); got != want {
			t.Errorf("roughly(%v) = %q, want %q", d, got, want)
		}
	}
}

// TestTerminalCutsLongNames lists a service with a long name. The name must be cut on terminals and
// in wide tables, but not in pipes and machine-readable formats.
func TestTerminalCutsLongNames(t *testing.T) {
	s := newSession(t)
	long := balancer.Name(strings.Repeat("payment-gateway-", 3) + "production-7")
	s.change(func() {
		s.services[1].Name = long
		for i := range s.services[1].Endpoints {
			s.services[1].Endpoints[i].Service = long
		}
	})
	for _, c := range []struct {
		line  string
		width int
		whole bool
	}{
		{"get endpoints", 80, false}, {"get services", 72, false}, {"get endpoints", 0, true}, {"get endpoints -o wide", 80, false},
		{"get endpoints -o json", 80, true}, {"get endpoints -o name", 80, true},
	} {
		s.out, s.Width = &notice{}, c.width
		s.Stdout = s.out
		if code := s.run(t.Context(), strings.Fields(c.line)...); code != cli.ExitDone {
			t.Errorf("%s: exit code = %d, want 0: %s", c.line, code, s.err)
		}
		got := s.out.String()
		if strings.Contains(got, string(long)) != c.whole || strings.Contains(got, "…") == c.whole {
			t.Errorf("%s in %d columns: output =\n%s\nwant the name cut only on terminals and in wide tables", c.line, c.width, got)
		}
		for l := range strings.Lines(got) {
			if w := table.Width(strings.TrimSuffix(l, "\n")); w > c.width && !c.whole && !strings.HasSuffix(c.line, "wide") || w > 160 && !c.whole {
				t.Errorf("%s: a line has %d columns, want no line wider than the terminal:\n%s", c.line, w, l)
			}
		}
	}
}

// TestTerminalCutsLongCells lists a service with a long last cell. On a terminal, the cell must be
// cut to fit, except in the wide form.
func TestTerminalCutsLongCells(t *testing.T) {
	s := newSession(t)
	s.Width = 60
	for _, c := range []struct{ line, has, lacks string }{
		{"describe service web", "answered 503…\n", "its connections were cut"},
		{"describe service web -o wide", "its connections were cut\n", "…"},
		{"get frontends web -o wide", "no such device\n", "…"},
	} {
		s.out = &notice{}
		s.Stdout = s.out
		if code := s.run(t.Context(), strings.Fields(c.line)...); code != cli.ExitDone {
			t.Errorf("%s: exit code = %d, want 0: %s", c.line, code, s.err)
		}
		if got := s.out.String(); !strings.Contains(got, c.has) || strings.Contains(got, c.lacks) {
			t.Errorf("%s: output =\n%s\nwant %q in it, and not %q", c.line, got, c.has, c.lacks)
		}
	}
}

// TestTextsFitTheTerminal runs status and doctor in pipes and on terminals of two widths. Text must
// be wrapped only if it is wider than the terminal.
func TestTextsFitTheTerminal(t *testing.T) {
	const problem = "iptables mode can't do lc; it uses random instead"
	s := newSession(t)
	for width, unbroken := range map[int]bool{0: true, 80: false, 160: true} {
		s.Width = width
		s.out.b.Reset()
		if code := s.run(t.Context(), "status"); code != cli.ExitDone {
			t.Fatalf("status, width %d: exit code = %d, want 0: %s", width, code, s.err)
		}
		text := s.out.String()
		if strings.Contains(text, problem) != unbroken {
			t.Errorf("width %d: problem on one line = %v, want %v\n%s", width, !unbroken, unbroken, text)
		}
		findings := []doctor.Finding{{Check: "kernel", Level: doctor.Warning, What: problem + ", because " + problem}}
		text += findingsText(&cli.Printer{World: s.World}, findings)
		if got := strings.Contains(text, findings[0].What); got != unbroken {
			t.Errorf("width %d: finding on one line = %v, want %v\n%s", width, got, unbroken, text)
		}
		for line := range strings.Lines(text) {
			if got := table.Width(strings.TrimSuffix(line, "\n")); width > 0 && got >= width {
				t.Errorf("width %d: a line has %d columns, want fewer: %s", width, got, line)
			}
		}
	}
}
