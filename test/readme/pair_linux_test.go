package readme

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"vipd/examples/process"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

const services = `
state_dir = "/run/vipd"
addresses.bind = false
[services.web]
vips = ["192.168.1.100"]
ports = [{ port = 80, target_port = 8080 }]
endpoints = [{ address = "10.0.0.2" }]
`

// moved has the addresses that examples/keepalived moves between hosts.
var moved = [...]string{"192.168.1.100/24", "10.0.0.1/24"}

// pair is two hosts between the switches eth0, where the client is, and eth1, where the server is.
type pair struct {
	t      *testing.T
	client *lab.NS
	hosts  [2]*router
}

// router is one of the two hosts. Its own /run and /etc/keepalived are below dir.
type router struct {
	*lab.NS
	t    *testing.T
	dir  string
	bin  string
	vipd *process.Process
	// runs has the host's keepalived processes, past and present.
	runs []*process.Process
}

func newPair(l *lab.Lab) *pair {
	front, back := l.Bridge("eth0"), l.Bridge("eth1")
	p := &pair{client: l.Add("client")}
	front.Join(p.client, "192.168.1.9/24")
	server := l.Add("server")
	back.Join(server, "10.0.0.2/24")
	server.Default("10.0.0.1")
	server.Echo("tcp", "s1", netip.MustParseAddrPort("10.0.0.2:8080"))
	for i := range p.hosts {
		p.hosts[i] = &router{NS: l.Add(fmt.Sprint("gw", i+1))}
		front.Join(p.hosts[i].NS, fmt.Sprintf("192.168.1.%d/24", 11+i))
		back.Join(p.hosts[i].NS, fmt.Sprintf("10.0.0.%d/24", 11+i))
	}
	return p
}

// serve starts both programs on one host and, when this host holds the addresses, on the other
// host. vipdFirst determines the order of the programs. The first host has the lower priority, and
// keeps the addresses because the other host does not preempt.
func (p *pair) serve(t *testing.T, bin string, vipdFirst bool) {
	p.t, p.client = t, p.client.For(t)
	for i, priority := range []string{"50", "100"} {
		m := p.hosts[i]
		m.NS, m.t, m.bin = m.For(t), t, bin
		m.furnish(priority)
		t.Cleanup(m.end)
		if vipdFirst {
			m.startVipd()
			m.await(m.vipd, "ready: ")
			m.startKeepalived()
		} else {
			m.startKeepalived()
			m.await(m.runs[0], "VRRP_Script(vipd) ") // the result is failed, or timed_out on a busy machine; keepalived logs only the first result
			m.startVipd()
		}
		m.await(m.runs[0], backup)
		if i == 0 { // an election with the other host could give both hosts the addresses for a moment
			p.wait("the only host to take the addresses", func() bool { return p.held(1) })
		}
	}
	p.waitForOneHolder()
}

func (p *pair) wait(what string, cond func() bool) {
	p.t.Helper()
	wait.For(p.t, time.Minute, what, cond)
}

// waitForOneHolder waits until one host holds both addresses and is the only one to answer ARP for
// the VIP, and a client is served.
func (p *pair) waitForOneHolder() {
	p.t.Helper()
	p.wait("one host to hold the addresses, and to serve", func() bool { return p.held(1) && p.answers() == 1 && p.served() })
}

// held reports whether each of the addresses is held by exactly this number of hosts.
func (p *pair) held(hosts int) bool {
	for _, address := range moved {
		n := 0
		for _, m := range p.hosts {
			if m.hasAddress(address) {
				n++
			}
		}
		if n != hosts {
			return false
		}
	}
	return true
}

// holder returns the host that holds the addresses.
func (p *pair) holder() (m *router) {
	p.t.Helper()
	p.wait("a host to hold the addresses", func() bool {
		for _, m = range p.hosts {
			if m.hasAddress(moved[0]) {
				return true
			}
		}
		return false
	})
	return m
}

func (p *pair) served() bool {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
	defer cancel()
	c, err := p.client.Dial(ctx, "tcp", "192.168.1.100:80")
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	_, err = lab.AskWithin(c, time.Second)
	return err == nil
}

// watch polls whether both hosts have an address, until the returned function two is called. It
// ignores a poll that the machine delayed, because keepalived may also have been delayed between
// giving up an address and removing it.
func (p *pair) watch() (two func() bool) {
	stop, done := make(chan struct{}), make(chan struct{})
	both, last, longest := false, time.Now(), time.Duration(0)
	go func() {
		defer close(done)
		for {
			for _, a := range moved {
				both = both || p.hosts[0].hasAddress(a) && p.hosts[1].hasAddress(a) && p.hosts[0].hasAddress(a)
			}
			longest, last = max(longest, time.Since(last)), time.Now()
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	end := sync.OnceFunc(func() { close(stop); <-done })
	p.t.Cleanup(end)
	return func() bool {
		end()
		return both && longest < 250*time.Millisecond
	}
}

// answers returns the number of hosts that answer the client's ARP request for the VIP.
func (p *pair) answers() int {
	p.t.Helper()
	var device *net.Interface
	var c *packet.Conn
	err := p.client.Do(func() (err error) {
		if device, err = net.InterfaceByName("eth0"); err == nil {
			c, err = packet.Listen(device, packet.Raw, unix.ETH_P_ARP, nil)
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	client, vip := []byte{192, 168, 1, 9}, []byte{192, 168, 1, 100}
	all := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	question := slices.Concat(all, device.HardwareAddr, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, device.HardwareAddr, client, make([]byte, 6), vip)
	_, err = c.WriteTo(question, &packet.Addr{HardwareAddr: all})
	if err := errors.Join(err, c.SetReadDeadline(time.Now().Add(100*time.Millisecond))); err != nil {
		p.t.Fatal(err)
	}
	answers := map[string]bool{}
	for frame := make([]byte, 256); ; {
		n, _, err := c.ReadFrom(frame)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return len(answers)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		if n >= 42 && frame[21] == 2 && bytes.Equal(frame[28:32], vip) && bytes.Equal(frame[38:42], client) {
			answers[string(frame[22:28])] = true
		}
	}
}

func (m *router) furnish(priority string) {
	m.t.Helper()
	m.dir = m.t.TempDir()
	for _, folder := range []string{"run", "etc"} {
		if err := os.Mkdir(filepath.Join(m.dir, folder), 0o755); err != nil {
			m.t.Fatal(err)
		}
	}
	program.Save(m.t, filepath.Join(m.dir, "vipd.toml"), services)
	recipe := filepath.Join("..", "..", "examples", "keepalived")
	conf := strings.Replace(read(m.t, filepath.Join(recipe, "keepalived.conf")), "priority 100", "priority "+priority, 1)
	program.Save(m.t, filepath.Join(m.dir, "etc", "keepalived.conf"), conf)
	check := filepath.Join(m.dir, "etc", "check-vipd")
	program.Save(m.t, check, read(m.t, filepath.Join(recipe, "check-vipd")))
	if err := os.Chmod(check, 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// start starts a program that sees the host's own /run and /etc/keepalived.
func (m *router) start(name string, args ...string) (p *process.Process) {
	m.t.Helper()
	script := `mount --bind "$0/run" /run; mount --bind "$0/etc" /etc/keepalived; exec "$@"`
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-ec", script, m.dir, name}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+m.bin+":"+os.Getenv("PATH"), "VIPCTL_CONFIG="+filepath.Join(m.dir, "vipd.toml"))
	err := m.Do(func() (err error) {
		p, err = process.Start(nil, cmd)
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (m *router) startVipd() { m.vipd = m.start("vipd", "--config", filepath.Join(m.dir, "vipd.toml")) }

func (m *router) startKeepalived() {
	m.runs = append(m.runs, m.start("keepalived", "--dont-fork", "--log-console"))
}

// backup is keepalived's message that it is ready and does not have the addresses.
const backup = "Entering BACKUP STATE"

// waited returns the number of times that keepalived has logged the message backup.
func (m *router) waited() (times int) {
	for _, k := range m.runs {
		times += strings.Count(k.Output(), backup)
	}
	return times
}

func (m *router) await(p *process.Process, text string) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	if err := p.AwaitOutput(ctx, text); err != nil {
		m.t.Fatal(err)
	}
}

// hasAddress reports whether the host has an address.
func (m *router) hasAddress(address string) (yes bool) {
	err := m.Do(func() error {
		all, err := net.InterfaceAddrs()
		yes = slices.ContainsFunc(all, func(a net.Addr) bool { return a.String() == address })
		return err
	})
	if err != nil {
		m.t.Error(err)
	}
	return yes
}

// renewed reports whether both addresses have a lifetime.
func (m *router) renewed() bool {
	mortal := 0
	for line := range strings.Lines(m.Exec("ip", "-4", "-o", "address")) {
		for _, a := range moved {
			if strings.Contains(line, " "+a+" ") && !strings.Contains(line, "valid_lft forever") {
				mortal++
			}
		}
	}
	return mortal == len(moved)
}

// keepalived returns the IDs of keepalived's main process and of its VRRP process.
func (m *router) keepalived() []int {
	pid := m.runs[len(m.runs)-1].Pid()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid))
	first, _, _ := strings.Cut(string(children), " ") // the process of a check script may follow
	child, convErr := strconv.Atoi(first)
	if err := errors.Join(err, convErr); err != nil {
		m.t.Fatal(err)
	}
	return []int{pid, child}
}

func (m *router) signal(s syscall.Signal, to ...int) {
	for _, pid := range to {
		if err := unix.Kill(pid, s); err != nil {
			m.t.Error(err)
		}
	}
}

// reap waits until a keepalived whose main process was killed has exited. This process has become
// the parent of keepalived's other process.
func (m *router) reap(all []int) {
	<-m.runs[len(m.runs)-1].Done()
	if _, err := unix.Wait4(all[1], nil, 0, nil); err != nil {
		m.t.Error(err)
	}
}

// end stops the host's programs, and logs their output if the test failed.
func (m *router) end() {
	for _, k := range m.runs {
		k.Kill() // this also stops the other process
		if out := k.Output(); m.t.Failed() || strings.Contains(out, "ignoring") {
			m.t.Errorf("log of keepalived on %s:\n%s", m.Name, out)
		}
	}
	if m.vipd != nil {
		m.vipd.Kill()
	}
}
