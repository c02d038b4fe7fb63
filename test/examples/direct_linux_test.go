package examples

import (
	"context"
	"fmt"
	"net/netip"
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

// TestIPVSDirect serves examples/direct.toml on the host of a lab. A client and two servers are on
// its network, and a third server is behind a router. The test sets up the servers with the
// commands in the file's comments. All servers must then serve the client.
func TestIPVSDirect(t *testing.T) {
	lab.NeedIPVS(t)
	lab.Need(t, "ip", "sysctl", "modprobe", "iptables", "ip6tables", "ipset", "ipvsadm")
	e, blocks := copied(t)
	onLAN, onFar, here := blocks[0], blocks[1], blocks[2]
	l := lab.New(t)
	lan := l.Bridge("lan")
	lan.Join(l.Host(), "192.168.1.1/24", "fd00:1::1/64")
	client := l.Add("client")
	lan.Join(client, "192.168.1.50/24", "fd00:1::50/64")
	client.Default("192.168.1.1", "fd00:1::1")
	for i, name := range []string{"s1", "s2"} {
		s := l.Add(name)
		lan.Join(s, fmt.Sprintf("192.168.1.%d/24", 11+i), fmt.Sprintf("fd00:1::%d/64", 11+i))
		runAll(s, e.Top, onLAN)
		s.Echo("tcp", name, netip.MustParseAddrPort("10.96.0.10:80"))
		s.Echo("tcp", name, netip.MustParseAddrPort("[fd00:96::10]:80"))
	}
	router, far := l.Add("router"), l.Add("far")
	lan.Join(router, "192.168.1.2/24", "fd00:1::2/64")
	l.Link(router, far, "172.16.0.1/24", "172.16.0.11/24", "fd00:2::1/64", "fd00:2::11/64")
	router.Sysctl("net.ipv4.ip_forward", "1")
	router.Sysctl("net.ipv6.conf.all.forwarding", "1")
	far.Default("172.16.0.1", "fd00:2::1")
	l.Host().Route("172.16.0.0/24", "192.168.1.2")
	l.Host().Route("fd00:2::/64", "fd00:1::2")
	far.Sysctl("net.ipv4.conf.all.rp_filter", "1") // many systems set this sysctl, and the commands must work with it
	runAll(far, e.Top, onFar)
	far.Echo("tcp", "far", netip.MustParseAddrPort("10.96.0.11:80"))
	far.Echo("tcp", "far", netip.MustParseAddrPort("[fd00:96::11]:80"))

	daemon := e.daemon(t, here)
	for _, test := range []struct {
		vip   string
		names []string
	}{{"10.96.0.10:80", []string{"s1", "s2"}}, {"[fd00:96::10]:80", []string{"s1", "s2"}}, {"10.96.0.11:80", []string{"far"}}, {"[fd00:96::11]:80", []string{"far"}}} {
		seen := map[string]bool{}
		wait.For(t, 30*time.Second, fmt.Sprintf("answers of %v at %s", test.names, test.vip), func() bool {
			a, err := askOnce(t, client, test.vip)
			if err != nil {
				t.Logf("%s: %v", test.vip, err)
				return false
			}
			if from := a.Client.Addr().String(); from != "192.168.1.50" && from != "fd00:1::50" {
				t.Errorf("%s sees %s at %s, want the client's own address", a.Server, from, test.vip)
			}
			seen[a.Server] = true
			return len(seen) == len(test.names)
		})
	}
	// Replies to this host's own programs come from the VIP, which this host also holds. IPv4
	// accepts packets from one of the host's own addresses only with this sysctl.
	l.Host().Sysctl("net.ipv4.conf.lan.accept_local", "1")
	for _, vip := range []string{"10.96.0.10:80", "[fd00:96::10]:80", "10.96.0.11:80", "[fd00:96::11]:80"} {
		if a, err := askOnce(t, l.Host(), vip); err != nil || a.Client.Addr().String() != "192.168.1.1" && a.Client.Addr().String() != "fd00:1::1" {
			t.Errorf("%s to the host: answer = %+v, error = %v, want an answer to the host's own address", vip, a, err)
		}
	}
	if err := daemon.Stop(wait.Patience); err != nil {
		t.Error(err)
	}
	if _, err := askOnce(t, client, "10.96.0.10:80"); err != nil {
		t.Errorf("while vipd is stopped: error = %v, want none", err)
	}
	out := e.do(t, here, "sudo bin/vipctl cleanup")
	if left := l.Host().Exec("ipvsadm", "-Sn"); strings.TrimSpace(left) != "" {
		t.Errorf("output of cleanup =\n%sremains =\n%s\nwant none", out, left)
	}
}

// copied copies the example and the programs to a directory. It returns the copy, and the groups of
// commands in the example's comments.
func copied(t *testing.T) (example, [][]string) {
	t.Helper()
	e := example{&program.Tree{Top: t.TempDir()}, "direct"}
	text, err := os.ReadFile("../../examples/direct.toml")
	if err == nil {
		err = os.Mkdir(filepath.Join(e.Top, "examples"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(e.Top, "examples", "direct.toml"), text, 0o644)
	}
	if err == nil {
		err = os.Symlink(program.Bin(t), filepath.Join(e.Top, "bin"))
	}
	if err != nil {
		t.Fatal(err)
	}
	blocks := [][]string{{}}
	for line := range strings.Lines(string(text)) {
		last := &blocks[len(blocks)-1]
		switch command, ok := strings.CutPrefix(line, "#   "); {
		case ok:
			command, _, _ = strings.Cut(command, "  ")
			*last = append(*last, strings.TrimSpace(command))
		case len(*last) > 0:
			blocks = append(blocks, nil)
		}
	}
	if len(blocks) != 4 || len(blocks[3]) > 0 {
		t.Fatalf("commands in direct.toml = %q, want those for servers, servers behind tunnels, and this host", blocks)
	}
	return e, blocks
}

func runAll(on *lab.NS, dir string, commands []string) {
	for _, command := range commands {
		on.Exec("sh", "-c", "cd "+dir+" && "+strings.TrimPrefix(command, "sudo "))
	}
}

// find returns the words of the documented command that begins with start, without sudo.
func find(t *testing.T, commands []string, start string) []string {
	t.Helper()
	for _, command := range commands {
		if strings.HasPrefix(command, start) {
			return strings.Fields(strings.TrimPrefix(command, "sudo "))
		}
	}
	t.Fatalf("commands in direct.toml = %[2]q, want a command that starts with %[1]q", start, commands)
	return nil
}

// do runs the documented command that begins with start, without sudo, in the example's directory.
// It returns the command's output.
func (e example) do(t *testing.T, commands []string, start string) string {
	t.Helper()
	words := find(t, commands, start)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = e.Top
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", words, err, out)
	}
	return string(out)
}

// daemon starts vipd with the documented command, and waits until it is ready.
func (e example) daemon(t *testing.T, commands []string) *process.Process {
	t.Helper()
	words := find(t, commands, "sudo bin/vipd")
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = e.Top
	p, err := process.Start(nil, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("vipd printed:\n%s", p.Output())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound(0))
	defer cancel()
	if err := p.AwaitOutput(ctx, "ready: the first complete state"); err != nil {
		t.Fatal(err)
	}
	return p
}

func askOnce(t *testing.T, from *lab.NS, vip string) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Scaled(20*time.Second))
	defer cancel()
	c, err := from.Dial(ctx, "tcp", vip)
	if err != nil {
		return lab.Answer{}, err
	}
	defer func() { _ = c.Close() }()
	return lab.Ask(c)
}
