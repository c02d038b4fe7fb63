package systemd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/wait"
)

// check is a health check's program. It passes if it runs as the user nobody.
const check = "#!/bin/sh\n[ \"$(id -un)\" = nobody ] && [ \"$(id -u)\" -gt 0 ] && echo \"I am $(id -un)\"\n"

// logHook is a hook that logs its user and its input.
const logHook = "#!/bin/sh\nexec systemd-cat -t told sh -c 'id -un; cat'\n"

// gateway is a machine between a client and a server that use it as their router.
type gateway struct {
	*machine
	client *lab.NS
}

func newGateway(t *testing.T, install func(t *testing.T, to string), files map[string]string) *gateway {
	t.Helper()
	lab.Require(t)
	lab.Need(t, "iptables", "ip6tables", "ipset")
	l := lab.New(t)
	host, client, server := l.Add("gateway"), l.Add("client"), l.Add("server")
	l.Link(host, client, "10.1.0.1/24", "10.1.0.2/24")
	l.Link(host, server, "10.2.0.1/24", "10.2.0.2/24")
	client.Default("10.1.0.1")
	server.Default("10.2.0.1")
	server.Echo("tcp", "s1", netip.MustParseAddrPort("10.2.0.2:8080"))
	all := map[string]string{"usr/local/bin/check": check, "usr/local/bin/told": logHook, "usr/local/bin/hang": "#!/bin/sh\nexec sleep 1000\n"}
	for name, text := range files {
		all[name] = text
	}
	return &gateway{newMachine(t, host, install, all), client}
}

// service returns a service at 10.96.0.N whose endpoint is checked by a program, unless the program
// is "".
func service(name string, n int, program string) string {
	text := fmt.Sprintf(`
[services.%s]
vips = ["10.96.0.%d"]
ports = [{ port = 80, target_port = 8080 }]
endpoints = [{ address = "10.2.0.2" }]
`, name, n)
	if program == "" {
		return text
	}
	interval, timeout := 40*time.Second, 39*time.Second // a busy machine may need a long time to start the program
	if strings.HasSuffix(program, "hang") {
		interval, timeout = time.Second, 900*time.Millisecond
	}
	return text + fmt.Sprintf("health = { type = \"exec\", command = [%q], interval = %q, timeout = %q }\n", program, wait.Scaled(interval), wait.Scaled(timeout))
}

func config(settings string, services ...string) string {
	return settings + "\n" + strings.Join(services, "\n")
}

func (g *gateway) configure(text string) {
	g.t.Helper()
	if err := os.WriteFile(g.path("/etc/vipd/vipd.toml"), []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// dial connects the client to a VIP and reads the server's name.
func (g *gateway) dial(vip string) (net.Conn, error) { return g.dialWithin(vip, wait.Bound(0)) }

func (g *gateway) dialWithin(vip string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), limit)
	defer cancel()
	c, err := g.client.Dial(ctx, "tcp", vip+":80")
	if err != nil {
		return nil, err
	}
	if _, err := lab.Ask(c); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// serves waits until a VIP is served.
func (g *gateway) serves(vip string) {
	g.t.Helper()
	lab.Eventually(g.t, 20*time.Second, vip+" to be served", func() error {
		c, err := g.dial(vip)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// clients makes a client connect again and again, with pauses, until the returned function stop is
// called. stop returns the number of connections. Each failed connection fails the test.
func (g *gateway) clients(vip string) (stop func() int64) {
	var done atomic.Int64
	var running sync.WaitGroup
	enough := make(chan struct{})
	running.Go(func() {
		for {
			select {
			case <-enough:
				return
			case <-time.After(wait.Scaled(5 * time.Millisecond)):
			}
			c, err := g.dial(vip)
			if err != nil {
				g.t.Errorf("client after %d other clients: error = %v, want none", done.Load(), err)
				return
			}
			_ = c.Close()
			done.Add(1)
		}
	})
	return func() int64 {
		close(enough)
		running.Wait()
		return done.Load()
	}
}

func echoes(t *testing.T, c net.Conn) {
	t.Helper()
	const line = "still there?\n"
	got := make([]byte, len(line))
	_ = c.SetDeadline(time.Now().Add(wait.Bound(0)))
	if _, err := c.Write([]byte(line)); err != nil {
		t.Errorf("open connection: error = %v, want none", err)
	} else if _, err := io.ReadFull(c, got); err != nil || string(got) != line {
		t.Errorf("open connection: echo = %q, %v; want %q", got, err, line)
	}
}

// TestUnitLife boots a machine, and follows README.md's section Install. The installed unit must
// work in each mode that this kernel supports, and survive faults.
func TestUnitLife(t *testing.T) {
	g := newGateway(t, fromTree, map[string]string{
		"etc/group": read(t, "/etc/group") + "vipd:x:4711:\n",
		"etc/systemd/system/network-slow.service":                             unit("Before=network-online.target", "sleep 0.3"),
		"etc/systemd/system/nftables.service":                                 unit("", "sleep 0.3; nft flush ruleset"),
		"etc/systemd/system/network-online.target.wants/network-slow.service": "-> ../network-slow.service",
		"etc/systemd/system/multi-user.target.wants/nftables.service":         "-> ../nftables.service",
		"etc/systemd/system/multi-user.target.wants/vipd.service":             "-> /usr/local/lib/systemd/system/vipd.service",
	})
	g.booted()
	for _, line := range readmeBlock(t, "systemd") {
		if out, err := g.try(line); err != nil {
			t.Fatalf("command %s of README.md: %v\n%s\n%s", line, err, out, g.journal(""))
		}
	}
	g.sandbox()
	g.socket()
	for _, l := range []life{
		{name: "nft", mode: "iptables", settings: "[iptables]\nbackend = \"nft\"", keeps: true},
		{name: "legacy", mode: "iptables", settings: "[iptables]\nbackend = \"legacy\"", keeps: true},
		{name: "userspace", mode: "userspace", settings: "[defaults]\nconnect_timeout = \"30s\"\n[hooks]\non_mode = [\"/usr/local/bin/told\"]\n[userspace]\naccess_log = \"/var/log/vipd/access.log\"", hooked: true},
	} {
		t.Run(l.name, func(t *testing.T) { g.inSubtest(t).live(l) })
	}
	t.Run("broken", func(t *testing.T) { g.inSubtest(t).broken() })
	t.Run("strict", func(t *testing.T) { g.inSubtest(t).strict() })
	t.Run("watchdog", func(t *testing.T) { g.inSubtest(t).watchdog() })
	t.Run("etcd", func(t *testing.T) { g.inSubtest(t).etcd() })
}

// inSubtest returns the gateway for a subtest, in which its failures are reported.
func (g *gateway) inSubtest(t *testing.T) *gateway {
	m := *g.machine
	m.t = t
	return &gateway{&m, g.client}
}

// TestIPVSUnitLife starts, restarts, stops and cleans up the unit in ipvs mode, with the module and
// sysctl files active. The machine is slow, so TestUnitLife has the cases that don't depend on the
// mode.
func TestIPVSUnitLife(t *testing.T) {
	lab.NeedIPVS(t)
	_, modules := active(t, "../../systemd/modules-load.d/vipd.conf")
	_, sysctls := active(t, "../../systemd/sysctl.d/vipd.conf")
	g := newGateway(t, fromTree, map[string]string{
		"etc/modules-load.d/vipd.conf": modules, "etc/sysctl.d/vipd.conf": sysctls,
		"etc/vipd/vipd.toml": config("mode = \"ipvs\"\nstrict_mode = true\n[host]\nmanage_sysctls = false", service("web", 10, "/usr/local/bin/check")),
	})
	for name, want := range map[string]string{"net.ipv4.vs.conntrack": "1", "net.ipv4.ip_forward": "1", "net.ipv4.conf.all.arp_ignore": "1"} {
		if got := g.ns.ReadSysctl(name); got != want {
			t.Errorf("%s after the boot = %s, want %s", name, got, want)
		}
	}
	g.run("systemctl start vipd")
	g.serves("10.96.0.10")
	g.sandbox()
	open, err := g.dial("10.96.0.10")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	stop := g.clients("10.96.0.10")
	g.run("systemctl restart vipd; systemctl stop vipd")
	echoes(t, open)
	if n := stop(); n < 5 {
		t.Errorf("served clients = %d, want at least 5", n)
	}
	g.serves("10.96.0.10")
	g.cleanedUp()
}

// life describes how the unit's behavior depends on the mode.
type life struct {
	name, mode, settings string
	// keeps reports whether traffic continues without vipd.
	keeps bool
	// hooked reports whether on_mode runs and connections are logged.
	hooked bool
}

func (g *gateway) live(l life) {
	t := g.t
	settings := fmt.Sprintf("mode = %q\nstrict_mode = true\n%s", l.mode, l.settings)
	web, hang := service("web", 10, "/usr/local/bin/check"), service("hang", 11, "/usr/local/bin/hang")
	g.run("systemctl stop vipd; vipctl cleanup")
	g.configure(config(settings, web, hang))
	g.run("systemctl start vipd")
	if got := g.property("StatusText"); !strings.HasPrefix(got, l.mode+" mode, services: 2, frontends: 2") {
		t.Errorf("unit: status = %q, want mode and services", got)
	}
	g.serves("10.96.0.10")
	wait.For(t, 20*time.Second, "checks to run as nobody, and to be killed", func() bool {
		out := g.run("vipctl get endpoints -o wide")
		return strings.Contains(out, "I am nobody") && strings.Contains(out, "did not exit within")
	})

	if l.hooked {
		wait.For(t, 20*time.Second, "the hook to be told as nobody", func() bool {
			out, _ := g.try("journalctl -t told -o cat")
			return strings.HasPrefix(out, "nobody\n{") && strings.Contains(out, `"text":"userspace mode serves"`)
		})
		wait.For(t, 20*time.Second, "a connection to be in the access log", func() bool {
			out, _ := g.try("cat /var/log/vipd/access.log")
			return strings.Contains(out, "service=web ")
		})
	}

	open, err := g.dial("10.96.0.10")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	stop := g.clients("10.96.0.10")
	g.reload(config(settings, web), config(settings, web, service("more", 12, "")))
	g.restartUnderLoad(open)
	if !l.keeps {
		if n := stop(); n < 20 {
			t.Errorf("served clients = %d, want at least 20", n)
		}
		_ = open.Close()
	}

	g.killed()
	g.serves("10.96.0.12")
	if l.keeps {
		echoes(t, open)
	}
	g.run("systemctl stop vipd")
	if got := g.property("Result"); got != "success" {
		t.Errorf("after a stop: result = %q, want success", got)
	}
	if l.keeps {
		echoes(t, open)
		g.serves("10.96.0.10")
		if n := stop(); n < 20 {
			t.Errorf("served clients = %d, want at least 20", n)
		}
	} else if out := g.run("ip address"); strings.Contains(out, "10.96.0.10/") {
		t.Errorf("after a stop in userspace mode: addresses =\n%s\nwant no VIP", out)
	}
	g.cleanedUp()
}

// restartUnderLoad restarts the unit while clients connect and streams run. None of them may fail,
// and the open connection must survive.
func (g *gateway) restartUnderLoad(open net.Conn) {
	g.t.Helper()
	perSecond := wait.Soak(20, 500)
	load := g.client.For(g.t).Load("10.96.0.12:80", perSecond, wait.Soak(5, 200))
	for range wait.Soak(1, 20) {
		until := load.Served() + int64(perSecond)/4
		wait.For(g.t, time.Minute, "clients to be served", func() bool { return load.Served() >= until || g.t.Failed() })
		g.run("systemctl restart vipd")
		echoes(g.t, open)
	}
	g.t.Logf("%d new clients a second were served, %d wanted", load.Rate(), perSecond)
	load.Stop()
	if g.t.Failed() {
		g.t.Log(g.journal(""))
	}
}

// cleanedUp removes the unit's remains, and checks that nothing is left.
func (g *gateway) cleanedUp() {
	g.t.Helper()
	g.run("vipctl cleanup")
	if out := g.run("iptables-save; iptables-legacy-save 2>/dev/null; ip address"); strings.Contains(out, "VIPD-") || strings.Contains(out, "10.96.0.1") {
		g.t.Errorf("state after cleanup =\n%s\nwant no rules and addresses of vipd", out)
	}
}

// killed kills vipd, and waits until systemd has started it again.
func (g *gateway) killed() {
	g.t.Helper()
	pid := g.property("MainPID")
	g.run("kill -9 " + pid)
	wait.For(g.t, 30*time.Second, "systemd to start vipd again", func() bool {
		now := g.property("MainPID") // read the process ID first, because a unit may still be active although its process has just died
		return now != "0" && now != pid && g.property("ActiveState") == "active"
	})
}

// reload reloads the unit, first with a mistake in the configuration, and then without the mistake.
func (g *gateway) reload(old, good string) {
	t := g.t
	t.Helper()
	g.configure(old + "\n[services.bad]\nvips = [\"10.96.0.300\"]\n")
	if out, err := g.try("systemctl reload vipd"); err == nil {
		t.Errorf("broken configuration: reload = nil, want an error\n%s", out)
	}
	if got := g.property("ActiveState"); got != "active" {
		t.Errorf("unit with a broken configuration: state = %s, want active", got)
	}
	if out := g.journal("-p warning"); !strings.Contains(out, "10.96.0.300") {
		t.Errorf("journalctl -p warning lacks the mistake:\n%s", out)
	}
	if got := g.property("StatusText"); !strings.Contains(got, "problems: ") {
		t.Errorf("with a problem: status = %q, want the number of problems in it", got)
	}
	g.configure(good)
	g.run("systemctl reload vipd")
	if got := g.property("StatusText"); strings.Contains(got, "problems") || !strings.Contains(got, "services: 2") {
		t.Errorf("after the fix: status = %q, want 2 services without problems", got)
	}
	g.serves("10.96.0.12")
}

// sandbox checks the process: the unit's restrictions must apply, and the log must have no errors
// about them.
func (g *gateway) sandbox() {
	g.t.Helper()
	status := g.run("cat /proc/$(systemctl show vipd --value -p MainPID)/status")
	// The unit explains each of its capabilities. Many containers lack CAP_SYS_RESOURCE, which is
	// the 1 in the mask.
	for _, want := range []string{`(?m)^NoNewPrivs:\s+1$`, `(?m)^Seccomp:\s+2$`, `(?m)^CapBnd:\s+000000000[01]0034e1$`} {
		if !regexp.MustCompile(want).MatchString(status) {
			g.t.Errorf("status of the process does not match %s:\n%s", want, status)
		}
	}
	inside := func(command string) (string, error) {
		return g.try("nsenter -m -t $(systemctl show vipd --value -p MainPID) " + command)
	}
	if out, err := inside("touch /run/vipd/allowed"); err != nil {
		g.t.Errorf("writing to run_dir in the sandbox: error = %v, want none\n%s", err, out)
	}
	for _, escape := range []string{
		"systemctl show vipd", "touch /run/systemd/vipd-escaped", "touch /run/vipd-escaped", "sh -c ': >>/proc/sys/kernel/core_pattern'",
	} {
		if out, err := inside(escape); err == nil {
			g.t.Errorf("%s succeeded in the sandbox, want an error\n%s", escape, out)
		}
	}
	if out := g.journal(""); strings.Contains(out, "level=") || strings.Contains(out, "time=") {
		g.t.Errorf("journal =\n%s\nwant lines without time and level", out)
	}
	if out := g.journal("-p warning"); strings.Contains(out, "vipd[") {
		g.t.Errorf("warnings in the journal =\n%s\nwant none", out)
	}
	if out := g.run("journalctl --no-pager -p warning -t systemd"); strings.Contains(out, "vipd.service:") {
		g.t.Errorf("systemd's warnings about the unit =\n%s\nwant none", out)
	}
}

// socket checks that members of the group vipd may use the API, and that other users may not.
func (g *gateway) socket() {
	g.t.Helper()
	if out, err := g.try("setpriv --reuid=65534 --regid=65534 --groups=4711 vipctl status"); err != nil {
		g.t.Errorf("vipctl as a member of group vipd: error = %v, want none\n%s", err, out)
	}
	if out, err := g.try("setpriv --reuid=65534 --regid=65534 --clear-groups vipctl status"); err == nil || !strings.Contains(out, "you have no permission to use vipd's socket") {
		g.t.Errorf("vipctl as nobody: error = %v and\n%s\nwant permission denied", err, out)
	}
}

// readmeBlock returns the lines of README.md's block for word.
func readmeBlock(t *testing.T, word string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, "../../README.md"), "```sh "+word+"\n")
	block, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("README.md lacks a block for %s", word)
	}
	return lines(block)
}
