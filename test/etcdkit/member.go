package etcdkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

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
	host    *Host // nil means the test's own namespace
	ready   func() bool
	process *os.Process
	ended   chan struct{}
}

// Addr returns HOST:PORT for clients.
func (m *Member) Addr() string { return m.client }

// Pid returns the member's process ID, which changes with each Start.
func (m *Member) Pid() int { return m.process.Pid }

// launch starts the process. It is killed when the test ends, or when the test's process dies.
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
		// For the kernel, a process's parent dies when the thread that started the process exits.
		runtime.LockOSThread()
		err := m.within(cmd.Start)
		started <- err
		if err == nil {
			_ = cmd.Wait() // the log has the result
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

// within calls a function in the member's namespace.
func (m *Member) within(f func() error) error {
	if m.host == nil {
		return f()
	}
	return m.host.Do(f)
}

// wait waits until the member serves.
func (m *Member) wait() {
	m.t.Helper()
	defer func() {
		if m.t.Failed() {
			text, _ := os.ReadFile(m.log)
			m.t.Logf("log of etcd:\n%s", text)
		}
	}()
	wait.For(m.t, wait.Patience, "etcd to serve", m.ready)
}

// Start restarts the member after Kill, Stop or Wipe, and waits until it serves.
func (m *Member) Start() {
	m.t.Helper()
	m.launch()
	m.wait()
}

// Kill kills the member.
func (m *Member) Kill() { m.end(syscall.SIGKILL) }

// Stop stops the member gracefully.
func (m *Member) Stop() { m.end(syscall.SIGTERM) }

func (m *Member) end(signal os.Signal) {
	_ = m.process.Signal(signal) // the process may have exited
	<-m.ended
}

// Pause stops the member's process until Resume or Kill. Connections stay open, but the member does
// not answer. On Linux, Pause returns once the process has stopped.
func (m *Member) Pause() {
	_ = m.process.Signal(pause)
	wait.For(m.t, time.Minute, "etcd to stop", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.process.Pid))
		return err != nil || strings.Contains(string(stat), ") T ")
	})
}

// Resume continues the process after Pause.
func (m *Member) Resume() { _ = m.process.Signal(resume) }

// Wipe deletes the member's data. The member must not run.
func (m *Member) Wipe() {
	m.t.Helper()
	if err := os.RemoveAll(m.dir); err != nil {
		m.t.Fatal(err)
	}
}

// Backup copies the member's data to a directory of the test. The member must not run.
func (m *Member) Backup() (dir string) {
	m.t.Helper()
	dir = filepath.Join(m.t.TempDir(), "backup")
	if err := os.CopyFS(dir, os.DirFS(m.dir)); err != nil {
		m.t.Fatal(err)
	}
	return dir
}

// Restore replaces the member's data with a Backup. The member must not run.
func (m *Member) Restore(dir string) {
	m.t.Helper()
	m.Wipe()
	if err := os.CopyFS(m.dir, os.DirFS(dir)); err != nil {
		m.t.Fatal(err)
	}
}

// peerPort is the port at which other members reach a member with a [Host].
const peerPort = "2380"

// Loss is a direction in which a member loses packets on port 2380, through which members reach
// each other. Clients still reach the member.
type Loss string

// Inbound drops packets to the member's port, and Outbound drops packets to other members' ports.
// Replies on connections in the other direction still pass. Both drops all packets from and to
// these ports.
const (
	Inbound  Loss = "inbound"
	Outbound Loss = "outbound"
	Both     Loss = "both"
)

// Losses returns all directions.
func Losses() []Loss { return []Loss{Inbound, Outbound, Both} }

// CutPeers drops packets on port 2380 until HealPeers. The member needs a [Host].
func (m *Member) CutPeers(l Loss) {
	m.t.Helper()
	rules := "add table inet peers; "
	for _, hook := range []string{"input", "output"} {
		if l == Inbound && hook == "output" || l == Outbound && hook == "input" {
			continue
		}
		rules += "add chain inet peers " + hook + " { type filter hook " + hook + " priority 0; }; add rule inet peers " + hook + " tcp dport " + peerPort + " drop; "
		if l == Both {
			rules += "add rule inet peers " + hook + " tcp sport " + peerPort + " drop; "
		}
	}
	m.nft(rules)
}

// HealPeers reverts CutPeers.
func (m *Member) HealPeers() {
	m.t.Helper()
	m.nft("delete table inet peers")
}

func (m *Member) nft(rules string) {
	m.t.Helper()
	var out strings.Builder
	cmd := exec.Command("nft", rules)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := m.within(cmd.Start); err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		m.t.Fatalf("nft %q: %v\n%s", rules, err, out.String())
	}
}
