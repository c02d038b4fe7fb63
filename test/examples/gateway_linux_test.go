package examples

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/examples/process"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// gatewayGuide is the set-up in docs/gateway.md: the service, and each host's commands.
type gatewayGuide struct {
	service  string
	commands map[string]string
}

// readGatewayGuide reads the first TOML block, and the shell blocks. The word after "sh" in a
// block's opening line names the host.
func readGatewayGuide(t *testing.T) gatewayGuide {
	t.Helper()
	text, err := os.ReadFile("../../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	g := gatewayGuide{commands: map[string]string{}}
	for i, part := range strings.Split(string(text), "\n```") {
		if i%2 == 0 {
			continue
		}
		language, block, _ := strings.Cut(part, "\n")
		host, isShell := strings.CutPrefix(language, "sh ")
		switch {
		case isShell:
			g.commands[host] = block
		case language == "toml" && g.service == "":
			g.service = block
		}
	}
	for _, host := range []string{"gateway foreground", "gateway", "endpoint", "client"} {
		if g.commands[host] == "" {
			t.Fatalf("docs/gateway.md lacks commands for %q", host)
		}
	}
	return g
}

// TestGateway builds the network in docs/gateway.md's picture, and runs each command on its host.
// The client must reach both servers, which must see the client's own address.
func TestGateway(t *testing.T) {
	lab.Need(t, "ip", "curl")
	program.Bin(t) // build the programs first, because the commands have a time limit
	g := readGatewayGuide(t)
	l := lab.New(t)
	client := l.Add("client")
	l.Link(l.Host(), client, "192.168.1.1/24", "192.168.1.50/24")
	servers := l.Bridge("servers")
	servers.Join(l.Host(), "10.1.0.1/24")
	for i, name := range []string{"web1", "web2"} {
		server := l.Add(name)
		servers.Join(server, fmt.Sprintf("10.1.0.%d/24", 11+i))
		serveWeb(t, server, name)
		runShell(t, server, g.commands["endpoint"])
	}
	startGateway(t, g)

	first, _, _ := strings.Cut(g.commands["client"], "curl")
	runShell(t, client, first)
	ask := strings.TrimPrefix(g.commands["client"], first)
	seen := map[string]bool{}
	wait.For(t, time.Minute, "answers of both servers", func() bool {
		out, err := shell(t, client, ask)
		if err != nil {
			t.Logf("output = %s, error = %v, want an answer", out, err)
			return false
		}
		name, from, _ := strings.Cut(strings.TrimSpace(out), " ")
		if from != "192.168.1.50" {
			t.Fatalf("%s: client = %q, want 192.168.1.50", name, from)
		}
		seen[name] = true
		return len(seen) == 2
	})
	if out := runShell(t, l.Host(), g.commands["gateway"]); !strings.Contains(out, "10.1.0.11") {
		t.Errorf("output of the gateway's commands =\n%s\nwant the endpoints", out)
	}
}

// serveWeb starts a web server on port 8080. It answers with its name and the client's address.
func serveWeb(t *testing.T, on *lab.NS, name string) {
	t.Helper()
	var listener net.Listener
	err := on.Do(func() (err error) {
		listener, err = net.Listen("tcp", ":8080")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr) // the address of a TCP connection always has a port
		fmt.Fprintln(w, name, from)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close() // connections end with the test
		<-ended
	})
}

// startGateway runs vipd with the service until the test ends.
func startGateway(t *testing.T, g gatewayGuide) {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "vipd.toml"), []byte(g.service+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(strings.TrimPrefix(g.commands["gateway foreground"], "sudo "))
	bin := program.Bin(t)
	cmd := exec.Command(filepath.Join(bin, words[0]), words[1:]...)
	cmd.Dir = folder
	p, err := process.Start(nil, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("vipd printed:\n%s", p.Output())
		}
		cleanup := exec.Command(filepath.Join(bin, "vipctl"), "--config", "vipd.toml", "cleanup")
		cleanup.Dir = folder
		if out, err := cleanup.CombinedOutput(); err != nil { // later tests share the host
			t.Errorf("vipctl cleanup: %v\n%s", err, out)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound(0))
	defer cancel()
	if err := p.AwaitOutput(ctx, "ready: the first complete state"); err != nil {
		t.Fatal(err)
	}
}

// shell runs a script on a host. The test runs as root, so sudo is a function that only runs its
// arguments.
func shell(t *testing.T, on *lab.NS, script string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound(0))
	defer cancel()
	cmd := on.Command(ctx, "bash", "-euo", "pipefail", "-c", "sudo() { \"$@\"; }\n"+script)
	cmd.Env = append(os.Environ(), "PATH="+program.Bin(t)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func runShell(t *testing.T, on *lab.NS, script string) string {
	t.Helper()
	out, err := shell(t, on, script)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}
