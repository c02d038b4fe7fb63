package etcdkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"vipd/test/wait"
)

// Member is one server of a cluster.
type Member struct {
	t       testing.TB
	binary  string
	name    string
	dir     string
	log     string
	client  string // HOST:PORT for clients
	peer    string
	flags   []string
	ready   func() bool
	process *os.Process
	ended   chan struct{}
}

// Addr is HOST:PORT where clients reach it.
func (m *Member) Addr() string { return m.client }

// Pid is its process, which is another one after each Start.
func (m *Member) Pid() int { return m.process.Pid }

// launch starts the process. It ends with the test, and with whoever runs that.
func (m *Member) launch() {
	m.t.Helper()
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(m.binary, m.flags...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = endWithParent()
	started := make(chan error)
	ended := make(chan struct{})
	go func() {
		// The kernel takes the end of the thread that started a process for the end of its parent.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
		_ = log.Close()
		close(ended)
	}()
	if err := <-started; err != nil {
		m.t.Fatalf("starting etcd: %v", err)
	}
	m.process, m.ended = cmd.Process, ended
	m.t.Cleanup(m.Kill)
}

// wait waits until it serves.
func (m *Member) wait() {
	m.t.Helper()
	defer func() {
		if m.t.Failed() {
			text, _ := os.ReadFile(m.log)
			m.t.Logf("etcd says:\n%s", text)
		}
	}()
	wait.For(m.t, wait.Patience, "etcd to serve", m.ready)
}

// Start starts it again after Kill, Stop or Wipe, and waits until it serves.
func (m *Member) Start() {
	m.t.Helper()
	m.launch()
	m.wait()
}

// Kill ends it as a crash does.
func (m *Member) Kill() { m.end(syscall.SIGKILL) }

// Stop ends it in order.
func (m *Member) Stop() { m.end(syscall.SIGTERM) }

func (m *Member) end(signal os.Signal) {
	_ = m.process.Signal(signal) // it may have ended already
	<-m.ended
}

// Pause stops its process, so that connections stand and nothing answers, until Resume or Kill.
func (m *Member) Pause() { _ = m.process.Signal(pause) }

// Resume undoes Pause.
func (m *Member) Resume() { _ = m.process.Signal(resume) }

// Wipe throws its data away. It must not run.
func (m *Member) Wipe() {
	m.t.Helper()
	if err := os.RemoveAll(m.dir); err != nil {
		m.t.Fatal(err)
	}
}

// Backup copies its data to a folder of the test. It must not run.
func (m *Member) Backup() (dir string) {
	m.t.Helper()
	dir = filepath.Join(m.t.TempDir(), "backup")
	if err := os.CopyFS(dir, os.DirFS(m.dir)); err != nil {
		m.t.Fatal(err)
	}
	return dir
}

// Restore makes a Backup its data. It must not run.
func (m *Member) Restore(dir string) {
	m.t.Helper()
	m.Wipe()
	if err := os.CopyFS(m.dir, os.DirFS(dir)); err != nil {
		m.t.Fatal(err)
	}
}
