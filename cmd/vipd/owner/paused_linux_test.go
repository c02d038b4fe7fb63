package owner

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer/failover"
	"vipd/test/etcdkit"
	"vipd/test/guest/vm"
	"vipd/test/wait"
)

// pausedMachine is a virtual machine that may own the VIP, and a prober that queries the VIP.
type pausedMachine struct {
	*prober
	t       *testing.T
	monitor net.Conn // QEMU's monitor
	answers *bufio.Reader
}

// TestPausedMachine pauses a virtual machine that owns a VIP, and its clocks, until another host
// has taken over. When the machine resumes, it may answer only until its gate closes.
func TestPausedMachine(t *testing.T) {
	if !wait.Soaking() {
		t.Skip("make soak runs it: it boots a guest")
	}
	if err := vm.Missing(); err != nil {
		t.Skip(err)
	}
	f := newFleet(t, "nftables", etcdkit.Options{})
	const hold = "[vips.\"10.9.0.100\"]\nhold = \"one\"\ngroup = \"pair\"\n"
	prefers := func(text string) string {
		return strings.Replace(text, hold, "[vips.\"10.9.0.100\"]\nhold = \"one\"\nprefer = [\"guest\"]\npreempt = \"1s\"\n", 1)
	}
	for _, g := range f.hosts {
		g.configure(prefers)
	}
	m := f.machine(prefers)
	var all []time.Duration
	for range 3 {
		wait.For(t, wait.Patience, "the machine to own the VIP", func() bool { return f.owner() == nil && m.silent() < 100*time.Millisecond })
		m.do("stop")
		wait.For(t, wait.Patience, "another owner of its VIP", func() bool { return f.owner() != nil })
		f.answers(vip)
		time.Sleep(3 * time.Second) // longer than the timeout of every gate
		before := m.silent()
		m.do("cont")
		woke := time.Now()
		if before < 3*time.Second {
			t.Errorf("paused machine: last answer = %s ago, want more than 3s", before)
		}
		for f.owner() != nil && m.silent() < time.Second || time.Since(woke) < time.Second {
			time.Sleep(time.Millisecond) // polling interval
		}
		all = append(all, max(0, m.spoke().Sub(woke)))
	}
	gate := failover.NewTiming(800 * time.Millisecond).Gate
	t.Logf("time of answers after a pause = %v; gate timeout = %s", all, gate)
	if worst := slices.Max(all); worst > 4*gate { // on a busy machine, the guest's clock is slow
		t.Errorf("after a pause: machine answered for %s, want at most %s", worst, 4*gate)
	}
}

// silent returns how long the machine has not answered for the VIP.
func (m *pausedMachine) silent() time.Duration {
	return time.Since(m.spoke())
}

// spoke returns when the machine last answered for the VIP.
func (m *pausedMachine) spoke() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastAnswer["guest"]
}

// machine boots a guest that may own VIPs. A client constantly queries the guest.
func (f *fleet) machine(configure func(string) string) *pausedMachine {
	t := f.t
	t.Helper()
	dir := t.TempDir()
	m := &pausedMachine{t: t}
	var l net.Listener
	if err := f.client.Do(func() (err error) {
		l, err = net.Listen("tcp", "10.9.0.50:2379")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	etcdkit.NewRelayOn(t, l, f.etcd.Members[0].Addr())
	text := configure("etcd.endpoints = [\"http://10.9.0.50:2379\"]\n" + fmt.Sprintf(configuration, "guest", 19, f.mode))
	text = strings.Replace(text, `, "10.8.0.19"`, "", 1)
	if err := os.WriteFile(filepath.Join(dir, "vipd.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("cd %s; modprobe virtio_net; ip link set eth0 down; ip link set eth0 name lan; ip addr add 10.9.0.19/16 dev lan; ip link set lan up; "+
		"%[2]s --config vipd.toml & exec %[2]s owner --config vipd.toml", dir, filepath.Join(f.bin, "vipd"))
	monitor := filepath.Join(dir, "monitor")
	within := f.lan.Tap("guest")
	var running sync.WaitGroup
	running.Go(func() {
		_, err := vm.Run(t.Context(), vm.Options{Tap: "guest", Within: within, Monitor: monitor, Stdout: t.Output(), Stderr: t.Output()}, "sh", "-c", script)
		t.Log("guest ended: ", err)
	})
	t.Cleanup(running.Wait)
	wait.For(t, time.Minute, "qemu's monitor", func() (ok bool) {
		c, err := net.Dial("unix", monitor)
		m.monitor = c
		return err == nil
	})
	m.answers = bufio.NewReader(m.monitor)
	m.do("qmp_capabilities")
	mac, err := net.ParseMAC(vm.TapMAC)
	if err != nil {
		t.Fatal(err)
	}
	m.prober = newProber(netip.MustParseAddr("10.9.0.50"), vip, unix.IPPROTO_TCP)
	m.hosts[string(mac)] = "guest"
	if err := f.client.Do(func() error { return m.start("lan") }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(m.stop); m.done.Wait() })
	return m
}

// do sends a command to QEMU's monitor.
func (m *pausedMachine) do(command string) {
	m.t.Helper()
	if _, err := fmt.Fprintf(m.monitor, "{\"execute\": %q}\n", command); err != nil {
		m.t.Fatal(err)
	}
	for {
		line, err := m.answers.ReadBytes('\n')
		var answer struct {
			Return json.RawMessage
			Error  json.RawMessage
		}
		if err = errors.Join(err, json.Unmarshal(line, &answer)); err != nil || answer.Error != nil {
			m.t.Fatalf("QEMU's answer to %s = %s, error = %v", command, line, err)
		}
		if answer.Return != nil {
			return
		}
	}
}
