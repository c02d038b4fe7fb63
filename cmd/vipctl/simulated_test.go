package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// within is the time limit for reactions that should be immediate.
const within = 30 * time.Second

// stage is a real etcd with simulated nodes, which write the same keys as real nodes.
type stage struct {
	*etcdkit.Cluster
	t      *testing.T
	config client.Config
	writer *etcd.Store
	// file is the path to an empty configuration file.
	file string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	c := etcdkit.Start(t, etcdkit.Options{})
	file := filepath.Join(t.TempDir(), "vipd.toml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := &stage{Cluster: c, t: t, file: file, config: client.Config{Endpoints: c.Endpoints(), Prefix: "/vipd"}}
	w, err := etcd.NewStore(f.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	f.writer = w
	return f
}

// service writes a service to etcd. The service maps TCP port 80 to 8080, and has endpoints at
// these addresses. The map fields overrides the service's fields, or adds more.
func (f *stage) service(name balancer.Name, fields map[string]any, addresses ...string) {
	f.t.Helper()
	all := map[string]any{
		"vips": []any{"10.96.0.10"}, "ports": []any{map[string]any{"port": int64(80), "target_port": int64(8080)}},
	}
	var endpoints []any
	for _, a := range addresses {
		endpoints = append(endpoints, map[string]any{"address": a})
	}
	if endpoints != nil {
		all["endpoints"] = endpoints
	}
	for field, value := range fields {
		all[field] = value
	}
	if _, err := f.writer.Apply(f.t.Context(), definitions.Change{Name: name, Fields: all, Base: definitions.Any}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *stage) read() store.Snapshot {
	f.t.Helper()
	s, err := f.writer.Read(f.t.Context(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// endpoint returns a registered endpoint, or nil if it does not exist or etcd is unavailable.
func (f *stage) endpoint(service balancer.Name, id string) *balancer.Endpoint {
	s, err := f.writer.Read(f.t.Context(), nil)
	if err != nil {
		return nil
	}
	return s.Endpoints.At(balancer.EndpointID{Service: service, ID: id})
}

// node is a simulated vipd.
type node struct {
	presence *fleet.Presence
	// stop shuts the node down cleanly, which removes its keys at once.
	stop func()

	mu     sync.Mutex
	status schema.NodeStatus
}

// start starts a node with the status that edit sets. If edit is nil, the node has no status yet.
func (f *stage) start(name string, edit func(*schema.NodeStatus)) *node {
	f.t.Helper()
	began := time.Now().Add(-3*time.Hour - 20*time.Second)
	p, err := f.writer.Presence(name, schema.NodeLive{Version: "v1.0.0", Started: began}, 20*time.Second) // a long TTL, because a busy machine renews late
	if err != nil {
		f.t.Fatal(err)
	}
	n := &node{presence: p, status: schema.NodeStatus{Version: "v1.0.0", Mode: "ipvs", Wanted: "auto", Ready: true}}
	if edit != nil {
		n.setStatus(edit)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	n.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	f.t.Cleanup(n.stop)
	return n
}

// setStatus applies edit to the node's status, and publishes the status in etcd.
func (n *node) setStatus(edit func(*schema.NodeStatus)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	edit(&n.status)
	next := n.status
	next.At = time.Now()
	n.presence.SetStatus(next)
}

// atRevision returns an edit that sets the applied revision.
func atRevision(revision int64) func(*schema.NodeStatus) {
	return func(s *schema.NodeStatus) { s.Revision = revision }
}

// draining returns an edit that sets the applied revision, and a draining endpoint's number of
// connections.
func draining(revision int64, service balancer.Name, address string, active uint64) func(*schema.NodeStatus) {
	return func(s *schema.NodeStatus) {
		s.Revision, s.Drains = revision, []schema.NodeDrain{{Service: service, Address: address, Active: active}}
	}
}

// waitFor waits until cond returns true. The text what describes the awaited state.
func (f *stage) waitFor(what string, cond func() bool) {
	f.t.Helper()
	wait.For(f.t, within, what, cond)
}

// waitForStatuses waits until exactly n live nodes in etcd have a status.
func (f *stage) waitForStatuses(n int) {
	f.t.Helper()
	wait.For(f.t, within, "the nodes", func() bool {
		nodes, err := f.writer.Statuses(f.t.Context())
		have := 0
		for _, n := range nodes {
			if n.Live != nil && n.Status != nil {
				have++
			}
		}
		return err == nil && have == n
	})
}

// line is a vipctl command line that runs in this process against a fleet.
type line struct {
	t        *testing.T
	stage    *stage
	out, err *notice
	world    cli.World
	ahead    atomic.Int64 // nanoseconds by which the line's clock is ahead of real time

	ended chan struct{}
	code  int
	stop  context.CancelFunc
}

func (f *stage) line() *line {
	l := &line{t: f.t, stage: f, out: &notice{}, err: &notice{}}
	getenv := func(name string) string { return map[string]string{"SUDO_USER": "ana"}[name] }
	now := func() time.Time { return time.Now().Add(time.Duration(l.ahead.Load())) }
	l.world = cli.World{Stdin: strings.NewReader(""), Stdout: l.out, Stderr: l.err, Getenv: getenv, Now: now}
	return l
}

// flags returns the flags that select the test's etcd.
func (f *stage) flags() []string {
	return []string{
		"--etcd", strings.Join(f.config.Endpoints, ","), "--prefix", f.config.Prefix, "--config", f.file,
		"--user", f.config.Username, "--password-file", f.config.PasswordFile,
	}
}

// do runs a command line, waits until it has finished, and checks the exit code.
func (f *stage) do(code int, args ...string) (stdout, stderr string) {
	f.t.Helper()
	l := f.line()
	ctx, cancel := context.WithTimeout(f.t.Context(), wait.Bound(2*within))
	defer cancel()
	if got := run(ctx, l.world, append(f.flags(), args...)); got != code {
		f.t.Errorf("vipctl %s: exit code = %d, want %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), got, code, l.out, l.err)
	}
	return l.out.String(), l.err.String()
}

// begin starts a command line concurrently with the test.
func (f *stage) begin(args ...string) *line {
	l := f.line()
	l.begin(args...)
	return l
}

func (l *line) begin(args ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop, l.ended = cancel, make(chan struct{})
	go func() {
		defer close(l.ended)
		l.code = run(ctx, l.world, append(l.stage.flags(), args...))
	}()
	l.t.Cleanup(func() { cancel(); <-l.ended })
}

// waitForStderr waits for text on stderr.
func (l *line) waitForStderr(text string) {
	l.t.Helper()
	found := false
	defer func() {
		if !found {
			l.t.Logf("vipctl did not reach the expected state; stdout: %s\nstderr: %s", l.out, l.err)
		}
	}()
	wait.For(l.t, within, "stderr to have "+text, func() bool { found = strings.Contains(l.err.String(), text); return found })
}

// waitForExit waits until the command line has finished, and checks its exit code.
func (l *line) waitForExit(code int) {
	l.t.Helper()
	ended := false
	defer func() {
		if !ended || l.code != code {
			l.t.Logf("vipctl did not reach the expected state; stdout: %s\nstderr: %s", l.out, l.err)
		}
	}()
	wait.For(l.t, within, "vipctl to end", func() bool {
		select {
		case <-l.ended:
			ended = true
		default:
		}
		return ended
	})
	if l.code != code {
		l.t.Errorf("vipctl: exit code = %d, want %d", l.code, code)
	}
}

// process is a vipctl that runs in a new process and can receive real signals.
type process struct {
	*exec.Cmd
	t        *testing.T
	out, err *notice
	ended    chan struct{}
}

// launch starts vipctl with args, preceded by the fleet's flags.
func (f *stage) launch(args ...string) *process { return f.command(nil, args...) }

// command is like launch, with a standard input.
func (f *stage) command(stdin *os.File, args ...string) *process {
	f.t.Helper()
	p := &process{Cmd: exec.Command("vipctl", append(f.flags(), args...)...), t: f.t, out: &notice{}, err: &notice{}, ended: make(chan struct{})}
	p.Stdout, p.Stderr, p.WaitDelay = p.out, p.err, 5*time.Second // vipctl's command may hold the pipes open after vipctl exits
	if stdin != nil {
		p.Stdin = stdin
	}
	if err := p.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.Wait() // ProcessState has the result
	}()
	f.t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
		if f.t.Failed() {
			f.t.Logf("output of vipctl; stdout: %s\nstderr: %s", p.out, p.err)
		}
	})
	return p
}

func (p *process) waitForStderr(text string) {
	p.t.Helper()
	wait.For(p.t, within, "stderr to have "+text, func() bool { return strings.Contains(p.err.String(), text) })
}

func (p *process) waitForStdout(text string) {
	p.t.Helper()
	wait.For(p.t, within, "stdout to have "+text, func() bool { return strings.Contains(p.out.String(), text) })
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// waitForExit waits until the process has exited, and checks its exit code.
func (p *process) waitForExit(code int) {
	p.t.Helper()
	wait.For(p.t, within, "vipctl to end", func() bool { return !p.running() })
	if got := p.ProcessState.ExitCode(); got != code {
		p.t.Errorf("vipctl: exit code = %d, want %d", got, code)
	}
}

// limit creates a user called name with only these rights. New clients connect as this user.
func (f *stage) limit(name string, read, write []string) {
	f.t.Helper()
	const password = "secret"
	f.EnableAuth(etcdkit.User{Name: name, Password: password, Read: read, Write: write})
	file := filepath.Join(f.t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.config.Username, f.config.PasswordFile = name, file
}
