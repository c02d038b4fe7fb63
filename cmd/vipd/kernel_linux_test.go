package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/cmd/vipd/daemon"
	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// gateway is a vipd on a lab's host, between a client and two servers that use it as their router.
type gateway struct {
	*lab.Lab
	t      testing.TB
	client *lab.NS
	ends   []*lab.NS // the servers' namespaces
	file   string
	vipctl string
	log    *slog.Logger // nil means the test's log
	daemon *daemon.Daemon
	api    *api.Client
	stop   func() // stops the daemon and waits until it has stopped
	// replaced waits until the old vipd has exited. The method replaces sets it.
	replaced func()
}

// newGateway returns a gateway and builds its vipctl, which takes seconds.
func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := newPlainGateway(t)
	g.vipctl = filepath.Join(program.Bin(t), "vipctl")
	return g
}

func newPlainGateway(t testing.TB) *gateway {
	t.Helper()
	lab.Need(t, "iptables", "ip6tables", "ipset")
	// In an earlier test, a client may have used the same port for a connection to an endpoint that
	// no longer exists.
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal("deleting connections of earlier tests: ", err)
	}
	dropVIP(t) // vipd must not mistake the VIP for an address of the host
	g := &gateway{Lab: lab.New(t), t: t, file: filepath.Join(t.TempDir(), "vipd.toml")}
	g.client = g.Add("client")
	g.Link(g.Host(), g.client, "10.1.0.1/24", "10.1.0.2/24")
	g.client.Default("10.1.0.1")
	for i, name := range []string{"s1", "s2"} {
		s := g.Add(name)
		g.ends = append(g.ends, s)
		g.Link(g.Host(), s, fmt.Sprintf("10.2.%d.1/24", i), fmt.Sprintf("10.2.%d.2/24", i))
		s.Default(fmt.Sprintf("10.2.%d.1", i))
		s.Echo("tcp", name, netip.MustParseAddrPort(fmt.Sprintf("10.2.%d.2:8080", i)))
	}
	return g
}

// dropVIP removes a VIP that an earlier test left behind, because kernel modes keep VIPs.
func dropVIP(t testing.TB) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if a, err := netlink.ParseAddr("10.96.0.10/32"); err != nil {
			t.Fatal(err)
		} else if err := netlink.AddrDel(l, a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Fatalf("removing VIPs of earlier tests: error = %v", err)
		}
	}
}

// write writes the configuration. The service's endpoints are on the servers with these numbers.
func (g *gateway) write(settings string, servers ...int) {
	g.t.Helper()
	var endpoints []string
	for _, i := range servers {
		endpoints = append(endpoints, fmt.Sprintf(`{ address = "10.2.%d.2" }`, i))
	}
	text := settings + `
[services.web]
vips = ["10.96.0.10"]
ports = [{ port = 80, target_port = 8080 }]
endpoints = [` + strings.Join(endpoints, ", ") + "]\n"
	program.Save(g.t, g.file, text)
}

func settings(mode, backend string) string {
	return fmt.Sprintf("mode = %q\nstrict_mode = true\nstate_dir = \"state\"\nrun_dir = \"run\"\n[api]\nsocket = \"run/d.sock\"\nhttp = \"\"\n"+
		"[iptables]\nbackend = %q\n", mode, backend)
}

// start starts main's daemon, and waits until it is ready.
func (g *gateway) start() {
	g.t.Helper()
	if g.log == nil {
		g.log = slog.New(slog.NewTextHandler(g.t.Output(), nil))
	}
	d, err := daemon.New(daemon.Options{ConfigFile: g.file, Log: g.log, Modes: modes.All()})
	for try := 1; try < 4 && err != nil && strings.Contains(err.Error(), "deadline exceeded"); try++ { // a trial may time out on a machine that is short of CPU time
		g.t.Log(err)
		d, err = daemon.New(daemon.Options{ConfigFile: g.file, Log: g.log, Modes: modes.All()})
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.daemon = d
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	g.api = api.NewClient(filepath.Join(filepath.Dir(g.file), "run", "d.sock"))
	g.stop = func() {
		g.stop = func() {}
		g.api.Close()
		cancel()
		if err := <-ended; err != nil {
			g.t.Error("Run returned", err)
		}
	}
	g.t.Cleanup(func() { g.stop() })
	wait.For(g.t, 20*time.Second, "vipd to be ready", func() bool { s, err := g.api.Status(g.t.Context()); return err == nil && s.Ready })
}

// ask connects to the VIP from a namespace, and returns the server's answer and the open
// connection.
func (g *gateway) ask(from *lab.NS) (lab.Answer, net.Conn) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), wait.Patience)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", "10.96.0.10:80")
	if err != nil {
		g.t.Fatalf("connecting from %s: error = %v", from.Name, err)
	}
	g.t.Cleanup(func() { _ = c.Close() })
	a, err := lab.AskWithin(c, wait.Patience)
	if err != nil {
		g.t.Fatalf("asking from %s: error = %v", from.Name, err)
	}
	return a, c
}

// servers connects often enough to reach every server, and returns their names.
func (g *gateway) servers(from *lab.NS) []string {
	g.t.Helper()
	var names []string
	for range 40 { // misses one of two servers once in 2^39 calls
		a, c := g.ask(from)
		_ = c.Close()
		names = append(names, a.Server)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// rules returns all rules of both families and backends, without counters.
func (g *gateway) rules() string {
	g.t.Helper()
	var b strings.Builder
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		for line := range strings.Lines(g.Host().Exec(program)) {
			if strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, "*") {
				b.WriteString(program + " " + line)
			}
		}
	}
	b.WriteString(g.Host().Exec("nft", "list", "tables"))
	return b.String()
}

// echoes sends a line over an open connection, and expects its echo.
func echoes(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(wait.Patience)); err != nil {
		return err
	}
	const line = "still there?\n"
	if _, err := c.Write([]byte(line)); err != nil {
		return err
	}
	got := make([]byte, len(line))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != line {
		return fmt.Errorf("echo = %q, error = %w", got, err)
	}
	return nil
}

// TestIPTablesMode runs the lifecycle of vipd: start, traffic, reload, stop under traffic, and
// cleanup.
func TestIPTablesMode(t *testing.T) {
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "nft" && !wait.Soaking() {
				t.Skip("make soak runs it: the daemon does the same with legacy")
			}
			g := newGateway(t)
			g.Host().Sysctl("net.ipv4.ip_forward", "0")
			g.Host().Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0")
			g.Host().Sysctl("net.netfilter.nf_conntrack_acct", "1")
			rule := []string{"FORWARD", "-s", "203.0.113.0/24", "-j", "DROP"} // another program's rule
			g.Host().Exec("iptables-"+backend, append([]string{"-A"}, rule...)...)
			t.Cleanup(func() { g.Host().Exec("iptables-"+backend, append([]string{"-D"}, rule...)...) })
			g.Host().Exec("iptables-"+backend, "-P", "FORWARD", "DROP")
			t.Cleanup(func() { g.Host().Exec("iptables-"+backend, "-P", "FORWARD", "ACCEPT") })
			before := g.rules()

			g.write(settings("iptables", backend), 0, 1)
			g.start()
			if s := g.status(); s.Mode.InUse != "iptables" || len(s.Problems) > 0 || s.Sync.Failing > 0 {
				t.Fatalf("status = %+v, want iptables mode without problems and failures", s)
			}
			for _, from := range []*lab.NS{g.client, g.Host()} {
				if got := g.servers(from); !slices.Equal(got, []string{"s1", "s2"}) {
					t.Errorf("servers that answered %s = %v, want both servers", from.Name, got)
				}
			}
			a, open := g.ask(g.client)
			if a.Client.Addr() != netip.MustParseAddr("10.1.0.2") {
				t.Errorf("client that the server sees = %v, want the client's own address", a.Client)
			}
			for _, name := range []string{"net.ipv4.ip_forward", "net.netfilter.nf_conntrack_tcp_be_liberal"} {
				if got := g.Host().ReadSysctl(name); got != "1" {
					t.Errorf("%s = %s, want 1", name, got)
				}
			}

			g.counted(open)
			g.examine("iptables mode is in use", "userspace mode works here (redirect)")

			g.write(settings("iptables", backend), 1)
			began := time.Now()
			if r, err := g.api.Reload(t.Context(), ""); err != nil || len(r.Problems) > 0 {
				t.Errorf("reload = %+v, error = %v, want no problems and no error", r, err)
			}
			if time.Since(began) >= 5*time.Second { // a reload waits at most 5 s
				g.waitUntilApplied()
			}
			if got := g.servers(g.client); !slices.Equal(got, []string{"s2"}) {
				t.Errorf("after the reload: servers = %v, want s2", got)
			}
			if err := echoes(open); err != nil {
				t.Error("error of an echo on the open connection = ", err)
			}

			g.stop()
			if got := g.servers(g.client); !slices.Equal(got, []string{"s2"}) {
				t.Errorf("after the stop: servers = %v, want s2", got)
			}
			if err := echoes(open); err != nil {
				t.Error("error of an echo on the open connection after the stop = ", err)
			}
			g.cleanup(before)
		})
	}
}

// counted checks that the open connection is live, and that the service's counters have connections
// and bytes.
func (g *gateway) counted(open net.Conn) {
	g.t.Helper()
	all := g.connections(dataplane.ConnectionQuery{Service: "web"})
	i := slices.IndexFunc(all, func(c api.Connection) bool { return c.Client.String() == open.LocalAddr().String() })
	if i < 0 || all[i].State != "established" || all[i].Frontend.String() != "10.96.0.10:80/tcp" || all[i].Backend.Port() != 8080 || all[i].In == 0 {
		g.t.Errorf("open connection %s is missing from the list: %+v", open.LocalAddr(), all)
	}
	lab.Eventually(g.t, 30*time.Second, "counting 81 connections", func() error { // counters are read every few seconds
		services, err := g.api.Services(g.t.Context())
		if err != nil || len(services) != 1 {
			return fmt.Errorf("services = %+v, error = %w", services, err)
		}
		var total, active uint64
		for _, e := range services[0].Endpoints {
			total += e.Connections
			active += e.Active
		}
		if p := services[0].Ports[0]; p.Connections != 81 || p.In == 0 || p.Out == 0 || total != 81 || active == 0 {
			return fmt.Errorf("port counts = %+v; endpoint connections = %d, live = %d", p, total, active)
		}
		return nil
	})
}

// sweep stops the daemon and removes the mode's state, as vipctl cleanup does.
func (g *gateway) sweep(mode string) {
	g.t.Helper()
	g.stop()
	c, problems, err := config.Load(g.file)
	if err != nil || len(problems) > 0 {
		g.t.Fatal(problems, err)
	}
	m, _ := modes.Find(config.ModeName(mode))
	_, hostErr := host.Cleanup(context.Background(), modes.HostOptions(c), false)
	if _, err := m.Cleanup(context.Background(), c, false); err != nil || hostErr != nil {
		g.t.Error("cleanup:", hostErr, err)
	}
}

// examine runs vipctl doctor next to the daemon. It must print these findings and no problem, and
// must change nothing.
func (g *gateway) examine(findings ...string) {
	g.t.Helper()
	before := g.rules()
	out := g.Host().Exec(g.vipctl, "doctor", "--config", g.file)
	for _, f := range append(findings, "10.96.0.10 is held on ", "0 problems") {
		if !strings.Contains(out, f) {
			g.t.Errorf("doctor: output does not contain %q; output =\n%s", f, out)
		}
	}
	if after := g.rules(); !sameRules(before, after) {
		g.t.Errorf("before doctor: rules =\n%s\nafterwards =\n%s\nwant no change", before, after)
	}
}

// cleanup runs vipctl cleanup, which must remove everything.
func (g *gateway) cleanup(before string) {
	g.t.Helper()
	out := g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
	if !strings.Contains(out, "iptables mode") || !strings.Contains(out, "10.96.0.10") || !strings.Contains(out, "net.ipv4.ip_forward") {
		g.t.Errorf("cleanup: output =\n%s\nwant a text that contains the mode, the VIP and the sysctl", out)
	}
	if after := g.rules(); strings.Contains(after, "VIPD") || !strings.Contains(after, "203.0.113.0/24") || !sameRules(before, after) {
		g.t.Errorf("before vipd: rules =\n%s\nafter cleanup =\n%s\nwant no change", before, after)
	}
	if sets := g.Host().Exec("ipset", "list", "-n"); strings.Contains(sets, "vipd-") {
		g.t.Errorf("after cleanup: sets =\n%s\nwant none", sets)
	}
	if addresses := g.Host().Exec("ip", "address"); strings.Contains(addresses, "10.96.0.10") {
		g.t.Errorf("after cleanup: addresses =\n%s\nwant none", addresses)
	}
	for _, name := range []string{"net.ipv4.ip_forward", "net.netfilter.nf_conntrack_tcp_be_liberal"} {
		if got := g.Host().ReadSysctl(name); got != "0" {
			g.t.Errorf("after cleanup: %s = %s, want 0", name, got)
		}
	}
}

// sameRules reports whether the rules are the same. It ignores empty tables that did not exist
// before.
func sameRules(before, after string) bool {
	only := func(text string) []string {
		return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return !strings.Contains(line, " -A ") })
	}
	return slices.Equal(only(before), only(after))
}

// TestRestartInAnotherMode starts vipd in one mode after the other. Each mode must serve, and must
// remove the rules that the previous mode left.
func TestRestartInAnotherMode(t *testing.T) {
	g := newGateway(t)
	for _, mode := range []string{"iptables", "userspace", "iptables"} {
		g.write(settings(mode, "auto"), 0, 1)
		g.start()
		wait.For(t, 20*time.Second, "the rules of the former mode to be removed", func() bool {
			rules := g.rules()
			return strings.Contains(rules, "VIPD-SERVICES") == (mode == "iptables") && strings.Contains(rules, "vipd-redirect") == (mode == "userspace")
		})
		if got, want := g.servers(g.client), []string{"s1", "s2"}; !slices.Equal(got, want) {
			t.Errorf("%s mode: servers that answered = %v, want %v", mode, got, want)
		}
		g.stop()
	}
	g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
	if left := g.rules(); strings.Contains(left, "VIPD") || strings.Contains(left, "vipd") {
		t.Errorf("after cleanup: rules =\n%s\nwant none", left)
	}
}
