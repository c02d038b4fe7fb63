package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Main(m) }

// routed builds the network client - host - server with IPv4 and IPv6.
func routed(t *testing.T) (l *Lab, client, server *NS) {
	l = New(t)
	client, server = l.Add("client"), l.Add("server")
	l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	l.Link(l.Host(), server, "10.2.0.1/24", "10.2.0.2/24", "fd02::1/64", "fd02::2/64")
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	l.Host().Sysctl("net.ipv6.conf.all.forwarding", "1")
	client.Default("10.1.0.1", "fd01::1")
	server.Default("10.2.0.1", "fd02::1")
	return l, client, server
}

func TestPacketsAreRoutedThroughTheHost(t *testing.T) {
	_, client, server := routed(t)
	for _, network := range []string{"tcp", "udp"} {
		for from, to := range map[string]string{"10.1.0.2": "10.2.0.2:80", "fd01::2": "[fd02::2]:80"} {
			s := server.Echo(network, "s1", netip.MustParseAddrPort(to))
			c, err := client.Dial(t.Context(), network, to)
			if err != nil {
				t.Fatalf("dialing %s %s: %v", network, to, err)
			}
			got, err := Ask(c)
			if err != nil {
				t.Fatalf("asking %s %s: %v", network, to, err)
			}
			want := Answer{"s1", addrPort(c.LocalAddr()), netip.MustParseAddrPort(to)}
			if got != want || got.Client.Addr() != netip.MustParseAddr(from) {
				t.Errorf("%s %s: answer = %+v, want %+v", network, to, got, want)
			}
			if got := s.Accepted(); got != 1 {
				t.Errorf("%s %s: accepted = %d, want 1", network, to, got)
			}
			echoes(t, c)
			_ = c.Close()
		}
	}
}

func echoes(t *testing.T, c net.Conn) {
	t.Helper()
	const text = "the same again"
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Errorf("echo = %q, %v, want %q", got, err, text)
	}
}

func TestEndingAServerEndsItsConnections(t *testing.T) {
	_, client, server := routed(t)
	s := server.Echo("tcp", "s1", netip.MustParseAddrPort("10.2.0.2:80"))
	c, err := client.Dial(t.Context(), "tcp", s.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := Ask(c); err != nil {
		t.Fatal(err)
	}
	if s.Open() != 1 {
		t.Errorf("open connections = %d, want 1", s.Open())
	}
	s.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("after Close: read = %v, want a reset", err)
	}
	if _, err := client.Dial(t.Context(), "tcp", s.Addr.String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after Close: dial = %v, want a refusal", err)
	}
}

func TestNamespacesAreApart(t *testing.T) {
	l, client, _ := routed(t)
	if _, err := l.Host().Dial(t.Context(), "tcp", "10.1.0.2:81"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("dial from the host to the client = %v, want a refusal", err)
	}
	ln, err := client.Listen("tcp", "127.0.0.1:81")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if c, err := client.Dial(t.Context(), "tcp", "127.0.0.1:81"); err != nil {
		t.Errorf("client's connection to its own loopback: error = %v, want none", err)
	} else {
		_ = c.Close()
	}
	if _, err := net.Dial("tcp", "127.0.0.1:81"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("dial from the host's loopback to the client's = %v, want a refusal", err)
	}
	out := client.Exec("ip", "-o", "address")
	if !strings.Contains(out, "10.1.0.2/24") || strings.Contains(out, "10.2.0.1/24") {
		t.Errorf("output of ip address in the client =\n%s\nwant only the client's addresses", out)
	}
}

func TestBridgeJoinsAll(t *testing.T) {
	l := New(t)
	lan := l.Bridge("lan")
	for i := 1; i <= 3; i++ {
		n := l.Host()
		if i > 1 {
			n = l.Add(fmt.Sprint("n", i))
		}
		lan.Join(n, fmt.Sprintf("10.3.0.%d/24", i), fmt.Sprintf("fd03::%d/64", i))
		n.Echo("tcp", n.Name, netip.MustParseAddrPort(fmt.Sprintf("10.3.0.%d:80", i)))
		n.Echo("udp", n.Name, netip.MustParseAddrPort(fmt.Sprintf("[fd03::%d]:80", i)))
	}
	for network, to := range map[string]string{"tcp": "10.3.0.3:80", "udp": "[fd03::3]:80"} {
		c, err := l.Host().Dial(t.Context(), network, to)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Ask(c); err != nil || got.Server != "n3" {
			t.Errorf("%s: answer = %+v, %v, want n3", to, got, err)
		}
		_ = c.Close()
	}
}

func TestTheThreadComesHome(t *testing.T) {
	l := New(t)
	client := l.Add("client")
	before := current(t)
	var within, nested string
	err := client.Do(func() error {
		within = current(t)
		return l.Host().Do(func() error { nested = current(t); return nil })
	})
	if err != nil || within == before || nested != before {
		t.Errorf("Do: error = %v; namespaces of the host = %s, of the client = %s, of a nested Do on the host = %s", err, before, within, nested)
	}
	func() {
		defer func() { _ = recover() }()
		_ = client.Do(func() error { panic("over") })
	}()
	if after := current(t); after != before {
		t.Errorf("after a panic in Do the thread is in %s, want %s", after, before)
	}
}

func current(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTheHostIsLeftAsItWas(t *testing.T) {
	Require(t)
	look := func() string {
		out, err := exec.Command("sh", "-c", "ip -o link; ip -o address; ip route; ip -6 route; cat /proc/sys/net/ipv4/ip_forward; ls /run").CombinedOutput()
		if err != nil {
			t.Fatalf("reading the host's state: %v\n%s", err, out)
		}
		return string(out)
	}
	before := look()
	t.Run("use", func(t *testing.T) {
		l, _, server := routed(t)
		l.Host().AddAddr("lo", "10.9.9.9/32")
		l.Host().AddAddr("lo", "fd99::9/128")
		l.Host().Route("10.7.0.0/16", "10.2.0.2")
		cmd := server.Command(context.Background(), "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	if after := look(); after != before {
		t.Errorf("state of the host after a test =\n%s\nwant\n%s", after, before)
	}
}

// TestChild is run by TestMainPassesOn in its own process.
func TestChild(t *testing.T) {
	switch os.Getenv("VIPD_LAB_CHILD") {
	case "":
		t.Skip("serves TestMainPassesOn")
	case "fail":
		t.Error("on purpose")
	case "exit":
		os.Exit(7)
	case "pass":
		Require(t)
	}
}

func TestMainPassesOn(t *testing.T) {
	Require(t)
	for ask, want := range map[string]struct {
		code int
		text string
	}{
		"pass": {0, "--- PASS: TestChild"},
		"fail": {1, "on purpose"},
		"exit": {7, "=== RUN   TestChild"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v", "-test.paniconexit0")
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, insideVar+"=") {
				cmd.Env = append(cmd.Env, v)
			}
		}
		cmd.Env = append(cmd.Env, "VIPD_LAB_CHILD="+ask)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != want.code || !strings.Contains(string(out), want.text) {
			t.Errorf("%s: exit code = %d, want %d with %q in\n%s", ask, code, want.code, want.text, out)
		}
		if strings.Contains(string(out), "TestPackets") {
			t.Errorf("%s: -test.run was not passed on:\n%s", ask, out)
		}
	}
}

func TestTheRunFolderIsPrivate(t *testing.T) {
	Require(t)
	entries, err := os.ReadDir("/run")
	if err != nil || len(entries) > 1 { // iptables may have left its lock file in another test
		t.Errorf("/run contains %v, %v, want nothing", entries, err)
	}
	if os.Getpid() != 1 {
		t.Errorf("pid = %d, want 1: nothing may outlive the tests", os.Getpid())
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("s1 10.0.0.1:5 [fd00::1]:80\n")
	f.Fuzz(func(t *testing.T, line string) {
		a, err := parseAnswer(line)
		if err != nil {
			return
		}
		again, err := parseAnswer((&Server{Name: a.Server}).answer(a.Client, a.Local))
		if err != nil || again != a {
			t.Errorf("%q is parsed as %+v, and after writing as %+v, %v; want the same", line, a, again, err)
		}
	})
}
