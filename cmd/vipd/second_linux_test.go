package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/test/program"
	"vipd/test/wait"
)

// second starts another vipd, with folders of its own, while g runs. In kernel modes it is refused; in userspace mode with
// bind it serves a VIP on loopback. Neither touches what the first one has in the kernel, and nor does a cleanup.
func (g *gateway) second() {
	t := g.t
	t.Helper()
	dir := t.TempDir()
	other := filepath.Join(dir, "vipd.toml")
	write := func(text string) {
		program.Save(t, other, text)
	}
	before := g.kernel()
	who := fmt.Sprintf("(pid %d, config %s, run_dir %s) already manages the services of this network namespace", os.Getpid(), g.file, filepath.Join(filepath.Dir(g.file), "run"))
	// fails runs a program that must end with this code, and say who has the namespace.
	fails := func(code int, program string, args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(filepath.Dir(g.vipctl), program), args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != code || !strings.Contains(string(out), who) {
			t.Errorf("%s %v: %v, and not code %d with %q:\n%s", program, args, err, code, who, out)
		}
	}
	for _, mode := range []string{"auto", "iptables", "userspace"} {
		write(settings(mode, "auto"))
		fails(78, "vipd", "--config", other)
	}
	fails(1, "vipctl", "cleanup", "--config", other)
	write(settings("userspace", "auto") + `[userspace]
intercept = "bind"
[services.local]
vips = ["127.0.9.1", "10.96.0.99"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.0.0.1" }]
`)
	beside := exec.Command(filepath.Join(filepath.Dir(g.vipctl), "vipd"), "--config", other)
	beside.Stderr = t.Output()
	if err := beside.Start(); err != nil {
		t.Fatal(err)
	}
	client := api.NewClient(filepath.Join(dir, "run", "d.sock"))
	defer client.Close()
	var s api.Status
	wait.For(t, 20*time.Second, "the second vipd to be ready", func() (ready bool) {
		var err error
		s, err = client.Status(t.Context())
		return err == nil && s.Ready
	})
	text := fmt.Sprint(s.Problems)
	if !strings.Contains(text, "10.96.0.99 is not local: ") || !strings.Contains(text, who) || strings.Contains(text, "127.0.9.1") {
		t.Errorf("problems of the second vipd: %s", text)
	}
	write(settings("iptables", "auto") + "[userspace]\nintercept = \"bind\"\n")
	if _, err := client.Reload(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if s, err := client.Status(t.Context()); err != nil || s.Mode.InUse != "userspace" || !strings.Contains(s.Mode.Reason, who) {
		t.Errorf("the second vipd is told to use iptables mode: %+v, %v", s.Mode, err)
	}
	if out := g.Host().Exec(g.vipctl, "cleanup", "--dry-run", "--config", other); !strings.Contains(out, "VIPD-FORWARD") || !strings.Contains(out, "chains of iptables mode") {
		t.Errorf("cleanup --dry-run of another config:\n%s", out)
	}
	if err := beside.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := beside.Wait(); err != nil {
		t.Error("the second vipd:", err)
	}
	if after := g.kernel(); after != before {
		t.Errorf("what the first vipd has in the kernel was\n%s\nand is\n%s", before, after)
	}
	if got := g.servers(g.client); !slices.Equal(got, []string{"s1", "s2"}) {
		t.Errorf("beside another vipd %v answer", got)
	}
}

// kernel is what vipd has in the kernel: rules, sets and addresses, without counters.
func (g *gateway) kernel() string {
	g.t.Helper()
	return strings.Join([]string{
		g.rules(), g.Host().Exec("ipset", "list", "-n"), g.Host().Exec("ip", "-o", "address", "show", "to", "10.96.0.0/16"),
	}, "\n")
}

// TestSecondVipd: one network namespace has one vipd that touches the kernel, whatever its run_dir.
func TestSecondVipd(t *testing.T) {
	g := newGateway(t)
	g.Host().Exec("iptables-nft", "-P", "FORWARD", "ACCEPT") // where iptables has filters, the guard has a chain among them
	g.write(settings("iptables", "auto"), 0, 1)
	g.start()
	g.second()
	g.stop()
	if out, err := exec.Command(g.vipctl, "cleanup", "--config", g.file).CombinedOutput(); err != nil {
		t.Errorf("cleanup after the end: %v\n%s", err, out)
	}
}
