package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

// busy returns three services' counters at one-second intervals.
func busy() (all []api.Traffic) {
	endpoint := func(n int, each uint64, second int, state balancer.BackendState, health balancer.Verdict) api.EndpointTraffic {
		return api.EndpointTraffic{
			Address: fmt.Sprintf("192.168.1.%d:8080", n), State: state, Health: health, Weight: 1, Active: each, Connections: each * uint64(second),
		}
	}
	for second := range 6 {
		wave := uint64(second * second)
		all = append(all, api.Traffic{At: time.Unix(int64(1e9+second), 0), Node: "n1", Mode: "ipvs", Services: []api.ServiceTraffic{
			{Name: "dns", Connections: 40 * uint64(second), In: 2048 * uint64(second), Out: 4096 * uint64(second), Active: 40, Up: 1, Of: 1, Ports: api.Use{{Up: 1, Of: 1}}, Endpoints: []api.EndpointTraffic{
				endpoint(21, 40, second, balancer.Active, ""),
			}},
			{Name: "empty"},
			{Name: "web", Connections: 10 * wave, In: 1 << 20 * wave, Out: 1 << 24 * wave, Active: 7, Up: 1, Of: 2, Ports: api.Use{{Up: 1, Of: 2}}, Endpoints: []api.EndpointTraffic{
				endpoint(11, 7, second, balancer.Active, balancer.HealthUp), endpoint(12, 0, second, balancer.Down, balancer.HealthDown),
			}},
		}})
	}
	return all
}

// tmux is a terminal that runs vipctl.
type tmux struct {
	t      *testing.T
	socket string
}

func startTmux(t *testing.T, folder, command string) *tmux {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("needs tmux: Debian's package tmux")
	}
	m := &tmux{t, filepath.Join(folder, "tmux")}
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", m.socket, "kill-server").Run() }) // the server may have exited with its last window
	m.run("-u", "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "14", "-c", folder, command)
	return m
}

func (m *tmux) run(args ...string) string {
	m.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", m.socket}, args...)...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %s: %v: %s", args, err, out)
	}
	return string(out)
}

// shows waits until the screen equals a golden file.
func (m *tmux) shows(name string) {
	m.t.Helper()
	file := filepath.Join("testdata", "top", name+".txt")
	if *update { // record the screen once it no longer changes
		screen := ""
		for next := m.run("capture-pane", "-p"); next != screen; next = m.run("capture-pane", "-p") {
			screen = next
			time.Sleep(2 * time.Second) // vipctl's screen changes in real time
		}
		if err := os.WriteFile(file, []byte(screen), 0o600); err != nil {
			m.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() {
		if m.t.Failed() {
			m.t.Logf("screen =\n%s\nwant %s", m.run("capture-pane", "-p"), name)
		}
	}()
	wait.For(m.t, 0, "the screen "+name, func() bool { return m.run("capture-pane", "-p") == string(want) })
}

// busyDaemon starts a fake daemon with traffic, which listens on d.sock in dir until stop is
// called.
func busyDaemon(t *testing.T) (dir string, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "top") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d, stop, err := serveFake(filepath.Join(dir, "d.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	d.change(func() { d.traffic = busy() })
	return dir, stop
}

// TestTopOnATerminal presses keys in top on a real terminal. Its screens must equal the golden
// files.
func TestTopOnATerminal(t *testing.T) {
	dir, stop := busyDaemon(t)
	m := startTmux(t, dir, "vipctl top --interval 100ms --socket d.sock; echo exits with $?; cat")
	m.shows("services")
	for _, step := range []struct{ keys, screen string }{
		{"s", "by-new"}, {"Down Enter", "endpoints"}, {"s s s s s Enter", "endpoint"}, {"Escape", "endpoints-again"}, {"Escape", "services-again"},
		{"r", "reversed"}, {"?", "keys"}, {"x", "reversed-again"}, {"/ w e", "typing"}, {"Enter", "filtered"}, {"Escape", "unfiltered"},
	} {
		for key := range strings.FieldsSeq(step.keys) {
			m.run("send-keys", key)
		}
		m.shows(step.screen)
	}
	stop()
	m.shows("away")
	m.run("send-keys", "q")
	wait.For(t, 0, "its end", func() bool { return strings.Contains(m.run("capture-pane", "-p"), "exits with 0") })
}

// TestTopWithoutKeys runs top without a keyboard. It must show the rates until it is interrupted.
// It must not send a query to the terminal, because the shell could read a late answer as typed
// text.
func TestTopWithoutKeys(t *testing.T) {
	dir, _ := busyDaemon(t)
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("needs script of util-linux")
	}
	for _, from := range []string{"", " </dev/null"} {
		folder, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		raw := filepath.Join(folder, "raw")
		m := startTmux(t, folder, "script -qefc 'vipctl top --interval 100ms --socket ../d.sock"+from+"' raw; echo exits with $?; cat")
		shows := func(part string) {
			t.Helper()
			wait.For(t, 0, part, func() bool { return strings.Contains(m.run("capture-pane", "-p"), part) })
		}
		shows("n1, ipvs mode: 3 services")
		shows(map[bool]string{true: "q quit", false: "Ctrl-C ends"}[from == ""])
		m.run("send-keys", "C-c")
		shows("exits with 0")
		text, err := os.ReadFile(raw)
		if asks := regexp.MustCompile(`\x1b\[\?(u|[0-9]+\$p)`).FindAll(text, -1); err != nil || len(text) == 0 || len(asks) > 0 {
			t.Errorf("error = %v, queries in %d bytes of output = %q; want no error and no query", err, len(text), asks)
		}
	}
}

// TestVerbsSendNoQueries runs verbs on a terminal that does not answer queries. The terminal must
// receive only the output, because a query for its colors would delay each verb.
func TestVerbsSendNoQueries(t *testing.T) {
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("needs script of util-linux")
	}
	cmd := exec.Command(script, "-qec", "vipctl version", "/dev/null")
	cmd.Env = append(os.Environ(), "TERM=xterm")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "vipctl ") || strings.Contains(string(out), "\x1b") {
		t.Errorf("error = %v, terminal output = %q; want only the verb's output", err, out)
	}
}

// TestTopWithoutBytes runs top in a mode without byte counts. It must show "-" instead of 0 bytes.
func TestTopWithoutBytes(t *testing.T) {
	s := newSession(t)
	s.change(func() {
		s.traffic = busy()
		for i := range s.traffic {
			for j := range s.traffic[i].Services {
				s.traffic[i].Services[j].In, s.traffic[i].Services[j].Out = 0, 0
			}
		}
	})
	want := "SERVICE   UP  NEW/S  ACTIVE  IN/S  OUT/S\n" +
		"dns      1/1   40.0      40     -      -\n" +
		"empty    0/0      0       0   0 B    0 B\n" +
		"web      1/2   10.0       7     -      -\n" +
		"TOTAL    2/3   50.0      47     -      -\n"
	if code := s.run(t.Context(), "top", "--interval", "100ms"); code != 0 || s.out.String() != want {
		t.Errorf("exit code = %d, stderr = %s, stdout =\n%s\nwant 0 and the expected table", code, s.err, s.out)
	}
}

// TestTopOnce runs top without a terminal. It must print the rates of one interval.
func TestTopOnce(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "" +
			"SERVICE   UP  NEW/S  ACTIVE     IN/S     OUT/S\n" +
			"dns      1/1   40.0      40  2.0 KiB   4.0 KiB\n" +
			"empty    0/0      0       0      0 B       0 B\n" +
			"web      1/2   10.0       7  1.0 MiB  16.0 MiB\n" +
			"TOTAL    2/3   50.0      47  1.0 MiB  16.0 MiB\n"},
		{[]string{"web"}, "" +
			"ENDPOINT           STATE   HEALTH  WEIGHT  NEW/S  ACTIVE\n" +
			"192.168.1.11:8080  active  up           1    7.0       7\n" +
			"192.168.1.12:8080  down    down         1      0       0\n" +
			"TOTAL              -       -            -    7.0       7\n"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			s := newSession(t)
			s.change(func() { s.traffic = busy() })
			if code := s.run(t.Context(), append([]string{"top", "--interval", "100ms"}, c.args...)...); code != 0 || s.out.String() != c.want {
				t.Errorf("exit code = %d, stderr = %s, stdout =\n%s\nwant 0 and the expected table", code, s.err, s.out)
			}
		})
	}
}
