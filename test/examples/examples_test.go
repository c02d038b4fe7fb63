package examples

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/test/dnskit"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestMain uses a network namespace if possible, so that the examples' ports are free.
func TestMain(m *testing.M) { lab.Main(m) }

// example is a file in the examples folder.
type example struct {
	*program.Tree
	name string
}

// TestExamples runs each example with servers as its endpoints. The commands in its comments must
// work.
func TestExamples(t *testing.T) {
	cases := map[string]func(t *testing.T, e example){
		"quickstart": quickstart, "web-tier": webTier, "dns": dns, "database": database, "sticky": sticky, "ipv6": ipv6, "names": names, "redis": redis,
		"proxy": proxy, "ftp": ftp,
		"direct": nil, // TestIPVSDirect tests this example on kernels with IPVS
		"limits": nil, // package dataplanetest tests limits; vipd does not limit clients on its own host
	}
	tree := program.New(t)
	files, err := filepath.Glob(filepath.Join(tree.Top, "examples", "*.toml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".toml")
		t.Run(name, func(t *testing.T) {
			run, ok := cases[name]
			if !ok {
				t.Fatalf("TestExamples has no test for %s", file)
			}
			e, mode := example{tree, name}, "userspace"
			if run == nil {
				mode = "ipvs"
			}
			if out, err := e.Shell(t, "bin/vipctl check --mode "+mode+" examples/"+name+".toml", wait.Patience); err != nil {
				t.Fatalf("vipctl check: %v\n%s", err, out)
			}
			if run == nil {
				return
			}
			run(t, e)
			wait.For(t, wait.Patience, "vipctl status to show no problems", func() bool {
				out, err := e.Shell(t, "bin/vipctl --socket "+program.Socket(name)+" status -o json", wait.Patience)
				return err == nil && strings.Contains(out, `"problems": []`)
			})
		})
	}
}

// commands returns the command lines in the file's comments. The command lines are indented by
// three spaces. Two or more spaces separate a command from its description.
func (e example) commands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(e.Top, "examples", e.name+".toml"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if command, ok := strings.CutPrefix(line, "#   "); ok {
			command, _, _ = strings.Cut(command, "  ")
			lines = append(lines, strings.TrimSpace(command))
		}
	}
	return lines
}

// say runs the documented command that begins with start, and returns its output.
func (e example) say(t *testing.T, start string) string {
	t.Helper()
	i := slices.IndexFunc(e.commands(t), func(c string) bool { return strings.HasPrefix(c, start) })
	if i < 0 {
		t.Fatalf("commands of %[1]s.toml = %[3]q, want a command that starts with %[2]q", e.name, start, e.commands(t))
	}
	command := e.commands(t)[i]
	limit := wait.Patience
	switch tool, _, _ := strings.Cut(command, " "); tool {
	case "curl":
		command = strings.Replace(command, "curl ", "curl -sS -m 60 ", 1)
	case "nc":
		limit = 2 * time.Second // nc runs until it is killed
	case "psql": // the servers here are not databases, so psql only connects
		command = strings.NewReplacer("psql -h ", "nc -N -w 60 ", " -p ", " ").Replace(command) + " </dev/null"
	}
	words := strings.Fields(command)
	if _, err := exec.LookPath(words[0]); err != nil && !strings.HasPrefix(words[0], "bin/") {
		t.Skipf("needs %s, which the example uses", words[0])
	}
	out, err := e.Shell(t, command, limit)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sayUntil repeats a command until every server has answered it. Any other answer fails the test.
func (e example) sayUntil(t *testing.T, start string, servers ...string) {
	t.Helper()
	seen := map[string]bool{}
	for range 40 * len(servers) { // the choice may be random, so one of three servers may get none of 12 requests
		out := e.say(t, start)
		for again := 0; out == "" && again < 10; again++ { // nc waits a second for a datagram, and a busy machine may need longer to answer
			out = e.say(t, start)
		}
		name := strings.Trim(strings.SplitN(strings.TrimSpace(out), " ", 2)[0], `"`)
		if !slices.Contains(servers, name) {
			t.Fatalf("%s: answer = %q, want an answer from one of %v", start, out, servers)
		}
		seen[name] = true
		if len(seen) == len(servers) {
			return
		}
	}
	t.Errorf("%s: servers that answered = %v, want all of %v", start, seen, servers)
}

func quickstart(t *testing.T, e example) {
	for i, name := range []string{"a", "b", "c"} {
		raw := fmt.Sprintf("127.0.0.1:%d", 17001+i)
		e.Echo(t, name, "--http", fmt.Sprintf("127.0.0.1:%d", 18081+i), "--tcp", raw, "--udp", raw)
	}
	e.Daemon(t, e.name)
	e.sayUntil(t, "curl 127.10.0.1:8080", "a", "b", "c")
	e.sayUntil(t, "echo hello | nc -u", "a", "b", "c")
	wait.For(t, wait.Patience, "the server's line and then hello of nc", func() bool { // nc is ended after two seconds, even on a busy machine
		return strings.HasSuffix(e.say(t, "nc 127.10.0.1 7000"), "\nhello\n")
	})
	if out := e.say(t, "bin/vipctl"); !strings.Contains(out, "userspace") {
		t.Errorf("vipctl status = %q, want the mode in it", out)
	}
}

func webTier(t *testing.T, e example) {
	for i, name := range []string{"a", "b", "draining"} {
		e.Echo(t, name, "--http", fmt.Sprintf("127.10.1.%d:8080", 11+i))
	}
	e.Daemon(t, e.name)
	// All connections are opened before a request is sent, so that the least-connections scheduler
	// sees them.
	var clients []net.Conn
	for range 12 {
		c, err := net.Dial("tcp", "127.10.1.1:8080")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	answers := map[string]int{}
	for _, c := range clients {
		_ = c.SetDeadline(time.Now().Add(wait.Patience))
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: site\r\n\r\n") // leaves the connection open
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(string(body), " ")
		answers[name]++
	}
	if want := (map[string]int{"a": 8, "b": 4}); !maps.Equal(answers, want) {
		t.Errorf("12 connections at once: answers = %v, want %v: a has weight 2, b 1", answers, want)
	}
	e.sayUntil(t, "curl 127.10.1.1:9000", "a")
}

func database(t *testing.T, e example) {
	e.Echo(t, "primary", "--tcp", "127.10.3.11:5432")
	e.Echo(t, "standby", "--tcp", "127.10.3.12:5432")
	e.Daemon(t, e.name)
	// A change takes effect within sync.min_interval, and then applies to every new connection.
	ask := func(want string) {
		t.Helper()
		wait.For(t, wait.Patience, "an answer of the "+want, func() bool {
			return strings.HasPrefix(e.say(t, "psql"), want+" ")
		})
		for range 3 {
			if out := e.say(t, "psql"); !strings.HasPrefix(out, want+" ") {
				t.Errorf("answer = %q, want an answer from the %s", out, want)
			}
		}
	}
	ask("primary")
	e.say(t, "bin/vipctl --socket build/database/run/vipd.sock drain")
	ask("standby")
	e.say(t, "bin/vipctl --socket build/database/run/vipd.sock undrain")
	ask("primary")
}

func names(t *testing.T, e example) {
	servers := dnskit.New(t, "127.10.7.53:5353")
	servers.Set(t, "web.example.org. 1 IN A 127.10.7.11", "web.example.org. 1 IN A 127.10.7.12")
	for i, name := range []string{"a", "b", "c", "d"} {
		e.Echo(t, name, "--http", fmt.Sprintf("127.10.7.%d:9000", 11+i))
	}
	e.Daemon(t, e.name)
	wait.For(t, wait.Patience, "endpoints from the first answers", func() bool {
		c, err := net.Dial("tcp", "127.10.7.1:8080")
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
	e.sayUntil(t, "curl", "a", "b", "c")
	servers.Set(t, "web.example.org. 1 IN A 127.10.7.14")
	wait.For(t, wait.Patience, "an answer of the new address", func() bool { return strings.HasPrefix(e.say(t, "curl"), "d ") })
	if out := e.say(t, "bin/vipctl"); !strings.Contains(out, "addresses of web.example.org: 1 endpoint") || !strings.Contains(out, "output of /bin/echo 127.10.7.13 weight=2: 1 endpoint") {
		t.Errorf("vipctl describe = %q, want both lookups in it", out)
	}
}

func sticky(t *testing.T, e example) {
	for i, name := range []string{"a", "b", "c"} {
		e.Echo(t, name, "--http", fmt.Sprintf("127.10.4.%d:8080", 11+i))
	}
	e.Daemon(t, e.name)
	servers := map[string]bool{}
	for client := 2; client < 12; client++ {
		line := fmt.Sprintf("curl -sS -m 60 --interface 127.0.0.%d 127.10.4.1:8080", client)
		first := ""
		for range 3 {
			out, err := e.Shell(t, line, wait.Patience)
			if err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(out, " ")
			if first != "" && name != first {
				t.Errorf("server of client 127.0.0.%d = %s after %s, want the same server each time", client, name, first)
			}
			first = name
		}
		servers[first] = true
	}
	if len(servers) != 3 {
		t.Errorf("servers of ten clients = %v, want all three servers", servers)
	}
	first := e.say(t, "curl 127.10.4.1:8080")
	if again := e.say(t, "curl 127.10.4.1:8080"); again[:1] != first[:1] {
		t.Errorf("answer = %q after %q, want the same server", again, first)
	}
	e.say(t, "curl --interface 127.0.0.2")
}

func ipv6(t *testing.T, e example) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("needs IPv6 on this machine: %v", err)
	}
	_ = l.Close()
	e.Echo(t, "six-a", "--http", "[::1]:18086")
	e.Echo(t, "six-b", "--http", "[::1]:18087")
	e.Echo(t, "four-a", "--http", "127.10.5.11:8080")
	e.Echo(t, "four-b", "--http", "127.10.5.12:8080")
	e.Daemon(t, e.name)
	e.sayUntil(t, "curl 'http://[::1]:8086'", "six-a", "six-b")
	e.sayUntil(t, "curl http://127.10.5.1:8086", "four-a", "four-b")
}
