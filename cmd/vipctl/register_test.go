package main

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/test/wait"
)

const (
	webID  = "10.0.0.1:8080"
	webKey = "/vipd/endpoints/web/" + webID
)

// registered waits until the tests' endpoint exists. If exists is false, it waits until the
// endpoint is removed.
func (f *stage) registered(exists bool) {
	f.t.Helper()
	wait.For(f.t, within, "the endpoint to be registered or removed", func() bool {
		s, err := f.writer.Read(f.t.Context(), nil)
		return err == nil && s.Endpoints.Has(balancer.EndpointID{Service: "web", ID: webID}) == exists
	})
}

func TestRegister(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	l := f.begin("register", "web", webID, "--ttl", "1m", "--weight", "3", "--node", "rack1", "--zone", "a", "--backup", "--max-connections", "7")
	f.registered(true)
	want := &balancer.Endpoint{
		Address: netip.MustParseAddr("10.0.0.1"), Port: 8080, Weight: 3, Node: "rack1", Zone: "a", Backup: true, MaxConnections: 7,
	}
	if d := cmp.Diff(want, f.endpoint("web", webID), cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("endpoint (-want +got):\n%s", d)
	}
	l.waitForStderr("is registered")
	l.stop()
	l.waitForExit(cli.ExitDone)
	if f.endpoint("web", webID) != nil {
		t.Error("endpoint still exists after the exit")
	}
	if d := cmp.Diff("vipctl: web/10.0.0.1:8080 is registered\nvipctl: web/10.0.0.1:8080 is removed\n", l.err.String()); d != "" {
		t.Errorf("stderr (-want +got):\n%s", d)
	}
	if l.out.String() != "" {
		t.Errorf("stdout = %q, want none", l.out)
	}

	l = f.begin("register", "other", "fd00::1", "--id", "mine")
	l.waitForStderr("note: there is no service other in etcd yet")
	wait.For(t, within, "the endpoint", func() bool {
		e := f.endpoint("other", "mine")
		return e != nil && e.Address == netip.MustParseAddr("fd00::1") && e.Port == 0 && e.Weight == 1
	})
}

// TestRegisterAgain removes the endpoint in several ways. Each time, vipctl must register it again
// and print a message.
func TestRegisterAgain(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	client := f.Client()
	l := f.begin("register", "web", webID, "--ttl", "3s")
	l.waitForStderr("web/10.0.0.1:8080 is registered\n")
	again := 0
	for _, lose := range []struct {
		name string
		do   func()
	}{
		{"outage", func() {
			f.Members[0].Kill()
			l.waitForStderr("; trying again; the endpoint stays until its lease ends\n")
			f.Members[0].Start()
		}},
		{"lease", func() {
			if _, err := client.Revoke(t.Context(), f.leaseOf(webKey)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				t.Fatal(err)
			}
		}},
		{"key", func() {
			if _, err := client.Delete(t.Context(), webKey); err != nil {
				t.Fatal(err)
			}
		}},
		{"wipe", func() {
			f.Members[0].Stop()
			f.Members[0].Wipe()
			f.Members[0].Start()
		}},
	} {
		lose.do()
		again++
		wait.For(t, within, "the return after "+lose.name, func() bool {
			return strings.Count(l.err.String(), "is registered again") >= again && f.endpoint("web", webID) != nil
		})
	}
	l.stop()
	l.waitForExit(cli.ExitDone)
	f.registered(false)
}

// TestTwoRegistrarsOfOneAddress registers one address twice. The later registrar must get the key.
// The earlier registrar must report the loss, and register again once the key is free.
func TestTwoRegistrarsOfOneAddress(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	first := f.begin("register", "web", webID, "--ttl", "2s", "--weight", "1") // with a short TTL, the registrar checks its key often
	first.waitForStderr("is registered")
	second := f.begin("register", "web", webID, "--ttl", "1m", "--weight", "2")
	second.waitForStderr("is registered")
	first.waitForStderr("/vipd/endpoints/web/10.0.0.1:8080 is held by another registrar: give each registrar its own ID")
	if e := f.endpoint("web", webID); e == nil || e.Weight != 2 {
		t.Errorf("endpoint = %+v, want weight 2", e)
	}
	second.stop()
	second.waitForExit(cli.ExitDone)
	first.waitForStderr("is registered again")
	wait.For(t, within, "the endpoint of the first", func() bool { e := f.endpoint("web", webID); return e != nil && e.Weight == 1 })
}

// TestRegisterKilled kills a registrar. Its endpoint must remain until the lease expires.
func TestRegisterKilled(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	p := f.launch("register", "web", webID, "--ttl", "2s")
	p.waitForStderr("is registered")
	lease := f.leaseOf(webKey)
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	killed := time.Now()
	if f.endpoint("web", webID) == nil {
		left, err := f.Client().TimeToLive(t.Context(), lease)
		if err != nil || left.TTL > 0 {
			t.Errorf("removed endpoint: lease = %+v, error = %v; want an expired lease", left, err)
		}
	}
	f.registered(false)
	t.Logf("time until the endpoint was removed = %s", time.Since(killed).Round(10*time.Millisecond))
}

// TestRegisterEndsInAnOutage stops a registrar while etcd is unavailable. The error must say when
// the remaining endpoint expires.
func TestRegisterEndsInAnOutage(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	l := f.begin("register", "web", webID)
	l.waitForStderr("is registered")
	f.Members[0].Kill()
	l.stop()
	l.waitForExit(cli.ExitFailed)
	if !strings.Contains(l.err.String(), "its endpoint expires with its lease, in 10s at most") {
		t.Errorf("stderr = %q, want a note about the lease", l.err)
	}
}

// TestRegisterCommandEnds lets the registered command exit. vipctl must return the command's exit
// code and remove the endpoint.
func TestRegisterCommandEnds(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	for _, test := range []struct {
		script string
		code   int
		says   string
	}{
		{"read line; exit 7", 7, "sh has exited: exit status 7"},
		{"read line; exit 0", 0, "sh has exited: exit status 0"},
		{"read line; kill -9 $$", 128 + 9, "sh has exited: signal: killed"},
	} {
		in, feed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = in.Close() }()
		p := f.command(in, "register", "web", webID, "--", "sh", "-c", test.script)
		p.waitForStderr("is registered")
		f.registered(true)
		_ = feed.Close() // the command reads vipctl's stdin until it is closed
		p.waitForExit(test.code)
		if f.endpoint("web", webID) != nil {
			t.Errorf("%s: endpoint still exists after the exit", test.script)
		}
		p.waitForStderr(test.says)
	}
}

// TestRegisterNoCommand runs a command that can't be started, and a command that exits immediately.
// No endpoint may remain.
func TestRegisterNoCommand(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	_, stderr := f.do(cli.ExitFailed, "register", "web", webID, "--", "no-such-command")
	if !strings.HasPrefix(stderr, "vipctl: starting ") {
		t.Errorf("stderr = %q, want the reason why the command did not start", stderr)
	}
	f.do(5, "register", "web", webID, "--", "sh", "-c", "exit 5")
	r, err := f.Client().Get(t.Context(), webKey)
	if err != nil || len(r.Kvs) > 0 {
		t.Errorf("response = %v, error = %v; want no endpoint and no error", r, err)
	}
}

// leaseOf returns the lease of a key once the key exists.
func (f *stage) leaseOf(key string) (id clientv3.LeaseID) {
	f.t.Helper()
	client := f.Client()
	wait.For(f.t, within, "a lease of "+key, func() bool {
		r, err := client.Get(f.t.Context(), key)
		if err == nil && len(r.Kvs) > 0 {
			id = clientv3.LeaseID(r.Kvs[0].Lease)
		}
		return id != 0
	})
	return id
}

func (p *process) interrupt() {
	p.t.Helper()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		p.t.Fatal(err)
	}
}

// stubborn is a command that prints a message and exits when it receives SIGTERM. It also exits
// when vipctl has exited.
const stubborn = `trap "echo asked; exit 5" TERM; echo ready; while kill -0 $PPID; do sleep 0.05; done`

// TestRegisterDrains stops a registered command. Five steps must happen in order: etcd marks the
// endpoint as draining, nodes reach that revision, connections end, the endpoint is removed, and
// the command receives the signal.
func TestRegisterDrains(t *testing.T) {
	f := newStage(t)
	f.service("web", map[string]any{"drain_timeout": "10m"})
	one, two := f.start("gw1", atRevision(1)), f.start("gw2", atRevision(1))
	f.waitForStatuses(2)
	p := f.launch("register", "web", webID, "--", "sh", "-c", stubborn)
	p.waitForStdout("ready")
	p.waitForStderr("web/10.0.0.1:8080 is registered") // before it is registered, there is nothing to drain
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitForStderr("web/10.0.0.1:8080 drains: waiting until no node has a connection to it, 10m0s at most")
	e := f.endpoint("web", webID)
	if e == nil || !e.Draining {
		t.Fatalf("endpoint = %+v, want a draining endpoint", e)
	}
	drained := f.revisionOf(webKey)
	still := func(why string) {
		t.Helper()
		f.waitForPoll()
		if e := f.endpoint("web", webID); !p.running() || e == nil || !e.Draining || strings.Contains(p.out.String(), "asked") {
			t.Errorf("%s: stdout = %s, want vipctl to wait", why, p.out)
		}
	}
	still("no node has applied it")
	one.setStatus(draining(drained, "web", webID, 0))
	still("one of two nodes has applied it")
	two.setStatus(draining(drained+1, "web", "10.0.0.1", 3))
	still("a node has connections to its address")
	two.setStatus(draining(drained+1, "web", webID, 1))
	still("a node has a connection")
	two.setStatus(draining(drained+1, "web", "10.0.0.1:9090", 1)) // connections of another endpoint do not matter
	p.waitForExit(5)
	p.waitForStdout("asked")
	if f.endpoint("web", webID) != nil {
		t.Error("endpoint still exists after the exit")
	}
}

// revisionOf returns the revision of a key's last change.
func (f *stage) revisionOf(key string) int64 {
	f.t.Helper()
	r, err := f.Client().Get(f.t.Context(), key)
	if err != nil || len(r.Kvs) == 0 {
		f.t.Fatalf("key %s: response = %v, error = %v, want the key", key, r, err)
	}
	return r.Kvs[0].ModRevision
}

// waitForPoll waits until vipctl, which polls every second, has read etcd's current state.
func (f *stage) waitForPoll() { time.Sleep(fleetInterval + fleetInterval/2) } // the timer runs in vipctl's process, so the test can only sleep

// TestRegisterDrainTimeout keeps a drain from completing in several ways. The timeout must end the
// drain.
func TestRegisterDrainTimeout(t *testing.T) {
	for name, spoil := range map[string]func(*stage){
		"connections stay":     func(f *stage) { f.start("gw1", draining(1<<40, "web", webID, 1)); f.waitForStatuses(1) },
		"no node has it":       func(f *stage) { f.start("gw1", atRevision(1)); f.waitForStatuses(1) },
		"nobody counts":        func(*stage) {},
		"etcd is away at last": func(f *stage) { f.Members[0].Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newStage(t)
			f.service("web", map[string]any{"drain_timeout": "2s"})
			p := f.launch("register", "web", webID, "--timeout", "2s", "--", "sh", "-c", stubborn)
			p.waitForStdout("ready")
			p.waitForStderr("is registered")
			spoil(f)
			began := time.Now()
			p.interrupt()
			p.waitForExit(5)
			p.waitForStdout("asked")
			if took := time.Since(began); took < 2*time.Second {
				t.Errorf("duration = %s, want at least 2s", took)
			}
		})
	}
}

// TestRegisterKillsTheCommand registers a command that ignores SIGTERM. The command and its child
// must be killed.
func TestRegisterKillsTheCommand(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	p := f.launch("register", "web", webID, "--timeout", "0s", "--kill-after", "1s", "--", "sh", "-c",
		`trap "" TERM; sleep 100 & echo $!; wait`)
	wait.For(t, within, "the command's child", func() bool { return strings.HasSuffix(p.out.String(), "\n") })
	child := strings.TrimSpace(p.out.String())
	p.waitForStderr("is registered")
	p.interrupt()
	p.waitForStderr("the command has not exited within 1s: killing it")
	p.waitForExit(128 + 9)
	wait.For(t, within, "the child to end", func() bool {
		state, err := os.ReadFile("/proc/" + child + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

// TestRegisterThreeSignals sends three signals. The first must start the drain, the second must end
// the drain, and the third must kill the command.
func TestRegisterThreeSignals(t *testing.T) {
	f := newStage(t)
	f.service("web", map[string]any{"drain_timeout": "1h"})
	f.start("gw1", draining(1<<40, "web", webID, 1))
	f.waitForStatuses(1)
	p := f.launch("register", "web", webID, "--kill-after", "1h", "--", "sh", "-c", `trap "echo asked" TERM; echo ready; while kill -0 $PPID; do sleep 0.05; done`)
	p.waitForStdout("ready")
	p.waitForStderr("is registered")
	p.interrupt()
	p.waitForStderr("drains: waiting")
	p.interrupt()
	p.waitForStdout("asked")
	f.registered(false)
	p.interrupt()
	p.waitForExit(128 + 9)
}

// TestRegisterKeepsForeignEndpoint stops a registrar whose key now belongs to another registrar.
// The other registrar's endpoint must remain unchanged.
func TestRegisterKeepsForeignEndpoint(t *testing.T) {
	f := newStage(t)
	f.service("web", map[string]any{"drain_timeout": "1h"})
	p := f.launch("register", "web", webID, "--ttl", "2s", "--", "sh", "-c", stubborn)
	p.waitForStdout("ready")
	p.waitForStderr("is registered")
	other := f.begin("register", "web", webID, "--ttl", "1m", "--weight", "2")
	other.waitForStderr("is registered")
	p.waitForStderr("held by another registrar")
	p.interrupt()
	p.waitForExit(5)
	p.waitForStderr("web/10.0.0.1:8080 is not drained: ")
	if e := f.endpoint("web", webID); e == nil || e.Draining || e.Weight != 2 {
		t.Errorf("endpoint = %+v, want weight 2 and no drain", e)
	}
}

// TestRegisterRights limits the registrar's rights. If it may not read the nodes, it must drain
// until drain_timeout. If it may read them, it must drain only until the connections end.
func TestRegisterRights(t *testing.T) {
	for name, test := range map[string]struct {
		read []string
		says string
	}{
		"registrar": {[]string{"/vipd/endpoints/web/", "/vipd/services/web"}, "the nodes with connections can't be read: the user web may not do that"},
		"waiter":    {[]string{"/vipd/endpoints/web/", "/vipd/services/web", "/vipd/nodes/"}, "no node has a connection to web/10.0.0.1:8080 now"},
		"less":      {[]string{"/vipd/endpoints/web/"}, "(drain_timeout of the service can't be read)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newStage(t)
			f.service("web", map[string]any{"drain_timeout": "2s"})
			f.start("gw1", draining(1<<40, "web", webID, 0))
			f.waitForStatuses(1)
			f.limit("web", test.read, []string{"/vipd/endpoints/web/"})
			p := f.launch("register", "web", webID, "--", "sh", "-c", stubborn)
			p.waitForStdout("ready")
			p.waitForStderr("is registered")
			p.interrupt()
			p.waitForStderr(test.says)
			if name == "less" {
				p.waitForStderr("30s at most")
				p.interrupt()
			}
			p.waitForExit(5)
			p.waitForStderr("web/10.0.0.1:8080 is removed")
		})
	}
}
