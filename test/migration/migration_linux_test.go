package migration

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vipd/examples/process"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

func vipctl(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(program.Bin(t), "vipctl"), args...)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("vipctl %s: %v\n%s", args, err, errors.String())
	}
	return string(out)
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a program in a namespace until the test ends, or stop is called.
func start(t *testing.T, n *lab.NS, name string, args ...string) (stop func()) {
	t.Helper()
	var p *process.Process
	err := n.Do(func() (err error) {
		p, err = process.Start(nil, exec.Command(name, args...))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.Output())
		}
	}
	t.Cleanup(stop)
	return stop
}

const haproxy = `
defaults
	mode tcp
	timeout connect 1m
	timeout client 1m
	timeout server 1m
frontend web
	bind 127.0.0.80:8001
	default_backend web
backend web
	balance roundrobin
	server a 127.0.0.11:9001 weight 30 check inter 500ms
	server b 127.0.0.12:9001 weight 20 check inter 500ms
	server c 127.0.0.13:9001 weight 10 check inter 500ms
	server gone 127.0.0.14:9001 weight 20 check inter 500ms
	server spare 127.0.0.15:9001 backup
listen sticky
	bind 127.0.0.80:8002
	balance source
	server a 127.0.0.11:9001
	server b 127.0.0.12:9001
	server c 127.0.0.13:9001
listen spare
	bind 127.0.0.80:8003
	server gone 127.0.0.14:9001 check inter 500ms
	server spare 127.0.0.15:9001 backup
`

// TestHAProxySpread converts an HAProxy configuration. HAProxy and vipd must give each server the
// same number of connections.
func TestHAProxySpread(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "haproxy")
	n := lab.New(t).Host()
	for i, name := range []string{"a", "b", "c", "", "spare"} {
		if name != "" {
			n.Echo("tcp", name, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(11 + i)}), 9001))
		}
	}
	origin := file(t, "haproxy.cfg", haproxy)

	stop := start(t, n, "haproxy", "-db", "-f", origin)
	want := connectionsByServer(t, n)
	stop()

	dir := t.TempDir()
	before := fmt.Sprintf("state_dir = %[1]q\nrun_dir = %[1]q\n", dir)
	behind := fmt.Sprintf("[userspace]\nintercept = \"bind\"\n[api]\nsocket = \"%s/vipd.sock\"\nhttp = \"\"\n", dir)
	config := file(t, "vipd.toml", before+vipctl(t, "convert", "--from", "haproxy", origin)+behind)
	start(t, n, filepath.Join(program.Bin(t), "vipd"), "--config", config)
	if d := cmp.Diff(want, connectionsByServer(t, n)); d != "" {
		t.Errorf("connections by service and server (-HAProxy +vipd):\n%s", d)
	}
}

// connectionsByServer returns the number of connections to each server in a round. It repeats
// rounds until two are equal, because failed servers must first be detected. For the sticky
// service, it returns the number of servers that each client reached.
func connectionsByServer(t *testing.T, n *lab.NS) map[string]map[string]int {
	t.Helper()
	all := map[string]map[string]int{"web": {}, "sticky": {}, "spare": {}}
	lab.Eventually(t, 30*time.Second, "each answers as in its rest", func() error {
		before := all["web"]
		all["web"] = servers(n, "127.0.0.1", 8001, 60)
		all["spare"] = servers(n, "127.0.0.1", 8003, 6)
		if all["web"]["none"]+all["spare"]["none"] > 0 || !maps.Equal(before, all["web"]) {
			return fmt.Errorf("counts of this round = %v, counts of the previous round = %v", all, before)
		}
		return nil
	})
	for i := range 12 {
		client := fmt.Sprintf("127.0.1.%d", i+1)
		all["sticky"][client] = len(servers(n, client, 8002, 5))
	}
	return all
}

// servers opens connections from a client in sequence, and counts the servers that answer; "none"
// counts connections without an answer.
func servers(n *lab.NS, client string, port uint16, times int) map[string]int {
	all := map[string]int{}
	ctx, stop := context.WithTimeout(context.Background(), wait.Bound(time.Minute))
	defer stop()
	for range times {
		name := "none"
		if c, err := n.DialFrom(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr(client), 0), fmt.Sprintf("127.0.0.80:%d", port)); err == nil {
			if a, err := lab.Ask(c); err == nil {
				name = a.Server
			}
			_ = c.Close()
		}
		all[name]++
	}
	return all
}

const keepalived = `
global_defs {
	router_id test
}
virtual_server 10.96.0.10 80 {
	lvs_sched wlc
	lvs_method NAT
	persistence_timeout 300
	protocol TCP
	real_server 10.1.0.11 8080 {
		weight 3
	}
	real_server 10.1.0.12 8080 {
		weight 1
	}
}
virtual_server 10.96.0.11 53 {
	lvs_sched sh
	lvs_method DR
	protocol UDP
	real_server 10.1.0.11 53 {
		weight 1
	}
	real_server 10.1.0.12 53 {
		weight 2
	}
}
virtual_server fd00:96::10 443 {
	lvs_sched rr
	lvs_method NAT
	protocol TCP
	real_server fd00:1::11 8443 {
		weight 1
	}
}
virtual_server_group both {
	10.96.0.20 80
	10.96.0.21 80
}
virtual_server group both {
	lvs_sched wrr
	lvs_method TUN
	protocol TCP
	real_server 10.1.0.13 80 {
		weight 5
	}
}
virtual_server 10.96.0.30 25 {
	lvs_sched lc
	lvs_method NAT
	protocol TCP
	real_server 10.1.0.14 25 {
		weight 0
	}
	real_server 10.1.0.15 25 {
		weight 1
	}
}
`

// TestIPVSTablesOfKeepalived converts a keepalived configuration. keepalived and vipd must
// create the same virtual servers, with two exceptions: keepalived adds servers of weight 0, and
// vipd uses sh with fallback.
func TestIPVSTablesOfKeepalived(t *testing.T) {
	lab.NeedIPVS(t)
	lab.Need(t, "keepalived", "ipvsadm")
	n := lab.New(t).Host()
	origin := file(t, "keepalived.conf", keepalived)
	plan := vipctl(t, "plan", "--mode", "ipvs", file(t, "services.toml", vipctl(t, "convert", "--from", "keepalived", origin)))
	want := table(strings.ReplaceAll(plan, " -b sh-fallback", ""))
	if len(want) != 14 {
		t.Fatalf("the plan lacks the 6 virtual servers with 8 destinations: %q", want)
	}

	folder := t.TempDir()
	start(t, n, "keepalived", "--dont-fork", "--log-console", "--check", "--use-file", origin, "--pid", folder+"/pid", "--checkers_pid", folder+"/checkers")
	var got []string
	lab.Eventually(t, time.Minute, "keepalived has entered its virtual servers", func() error {
		got = table(n.Exec("ipvsadm", "--save", "-n"))
		if len(got) < len(want) {
			return fmt.Errorf("virtual servers = %q", got)
		}
		return nil
	})
	if d := cmp.Diff(got, want); d != "" {
		t.Errorf("virtual servers (-keepalived +vipd):\n%s", d)
	}
}

// table returns the lines of virtual servers, and of destinations that accept connections, sorted
// and without defaults.
func table(text string) (lines []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(strings.TrimSpace(line), " --tun-type ipip")
		if strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, "-a ") && !strings.HasSuffix(line, " -w 0") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}
