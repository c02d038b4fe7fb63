package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/wait"
)

// node is one host of the fleet.
type node struct {
	*world
	name   string
	ns     *lab.NS
	behind *lab.NS // namespace of a client that reaches the VIPs through the node
	relays []*etcdkit.Relay
	dir    string

	vipd  *lab.Cmd
	local *http.Client // client of vipd's socket
	web   *http.Client // client of vipd's web address, in the node's namespace
}

// status has the fields of vipctl status that tests read.
type status struct {
	Ready bool
	Mode  struct {
		InUse string `json:"in_use"`
	}
	Store struct {
		Connected bool
		Error     string
		Revision  int64
	}
	Sync struct {
		Wanted, Applied  int64
		Pending, Failing int
	}
	Problems []problem
}

type problem struct{ Text string }

const configuration = `mode = %q
strict_mode = true
node = %q
state_dir = "state"
run_dir = "run"
[store]
kind = "etcd"
[etcd]
endpoints = ["%s"]
prefix = %q
username = %q
password_file = "password"
[addresses]
allowed = ["10.96.0.0/16"]
[sync]
min_interval = "100ms"
[api]
socket = "run/vipd.sock"
http = "127.0.0.1:9890"
[iptables]
backend = "nft"
`

func (n *node) connect() {
	over := func(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
		return &http.Client{Timeout: wait.Bound(0), Transport: &http.Transport{DialContext: dial}}
	}
	n.local = over(func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", n.socket())
	})
	n.web = over(n.ns.Dial)
}

func (n *node) start(mode string) {
	n.t.Helper()
	text := fmt.Sprintf(configuration, mode, n.name, strings.Join(n.etcd.Endpoints(), `", "`), prefix, n.name)
	if err := os.WriteFile(n.config(), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	log, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor of the log
	cmd := n.ns.Command(context.Background(), filepath.Join(n.bin, "vipd"), "--config", n.config(), "--log-level", "debug")
	cmd.Stdout, cmd.Stderr = log, log
	// The namespaces share /run, but nodes must not wait for each other's lock.
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(n.dir, "xtables.lock"))
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.vipd = cmd
	n.t.Cleanup(func() {
		n.stop()
		if n.t.Failed() {
			n.t.Logf("last lines of the log of %s:\n%s", n.name, n.tail(60))
		}
	})
}

func (n *node) config() string { return filepath.Join(n.dir, "vipd.toml") }
func (n *node) log() string    { return filepath.Join(n.dir, "log") }
func (n *node) socket() string { return filepath.Join(n.dir, "run", "vipd.sock") }

// tail returns the last lines of the node's log.
func (n *node) tail(lines int) string {
	text, _ := os.ReadFile(n.log())
	all := strings.SplitAfter(string(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// stop stops vipd gracefully, and waits until it has exited. It may be called more than once.
func (n *node) stop() {
	n.t.Helper()
	if n.vipd == nil {
		return
	}
	cmd := n.vipd
	n.vipd = nil
	timer := time.AfterFunc(wait.Scaled(patience), func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Process.Signal(syscall.SIGTERM) // the process may have exited
	if err := cmd.Wait(); err != nil {
		n.t.Errorf("%s: exit of vipd = %v, want no error", n.name, err)
	}
	n.local.CloseIdleConnections()
	n.web.CloseIdleConnections()
}

func (n *node) ctl(args ...string) (string, error) {
	out, err := n.ns.Command(n.t.Context(), filepath.Join(n.bin, "vipctl"), append([]string{"--socket", n.socket()}, args...)...).CombinedOutput()
	return string(out), err
}

// status requests vipd's status, as vipctl does. It returns a zero status if vipd does not answer.
func (n *node) status() (s status) {
	response, err := n.local.Get("http://vipd/v1/status")
	if err != nil {
		return s
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(&s); err != nil {
		return status{}
	}
	return s
}

// await waits until the status satisfies a condition.
func (n *node) await(what string, is func(status) bool) (last status) {
	n.t.Helper()
	defer func() {
		if n.t.Failed() {
			n.t.Logf("last status of %s = %+v", n.name, last)
		}
	}()
	wait.For(n.t, patience, n.name+": "+what, func() bool { last = n.status(); return is(last) })
	return last
}

// ready waits until vipd serves the services in etcd. It does not poll the status, because that
// costs more the more services exist.
func (n *node) ready() {
	n.t.Helper()
	wait.For(n.t, 5*patience, n.name+": vipd to be ready", func() bool {
		response, err := n.web.Get("http://127.0.0.1:9890/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	n.await("vipd to serve", func(s status) bool { return s.Ready && s.Store.Connected })
}

// applies waits until the node has applied a revision of etcd.
func (n *node) applies(revision int64) {
	n.t.Helper()
	n.await(fmt.Sprintf("revision %d in effect", revision), func(s status) bool {
		return s.Store.Connected && s.Sync.Applied >= revision && s.Sync.Pending == 0
	})
}

// metric returns the value of a metric without labels.
func (n *node) metric(name string) float64 {
	n.t.Helper()
	response, err := n.web.Get("http://127.0.0.1:9890/metrics")
	if err != nil {
		n.t.Fatalf("%s: metrics: %v", n.name, err)
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				n.t.Fatal(err)
			}
			return f
		}
	}
	n.t.Fatalf("%s lacks the metric %s", n.name, name)
	return 0
}

// cut, freeze and heal change the network between the node and etcd.
func (n *node) cut() {
	for _, r := range n.relays {
		r.Cut()
	}
}

func (n *node) freeze() {
	for _, r := range n.relays {
		r.Freeze()
	}
}

func (n *node) heal() {
	for _, r := range n.relays {
		r.Heal()
	}
}
