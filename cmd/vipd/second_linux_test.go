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

	"vipd/test/program"
)

// second starts another vipd with its own directories while g is running. The second vipd and a
// cleanup must be refused in every mode, and neither may change the first vipd's kernel state.
func (g *gateway) second() {
	t := g.t
	t.Helper()
	other := filepath.Join(t.TempDir(), "vipd.toml")
	before := g.kernel()
	who := fmt.Sprintf("(pid %d, config %s, run_dir %s) already manages the services in this network namespace: stop that vipd",
		os.Getpid(), g.file, filepath.Join(filepath.Dir(g.file), "run"))
	// fails runs a program. It must exit with the exit code code, and print a message that contains
	// each text in want.
	fails := func(code int, want []string, program string, args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(filepath.Dir(g.vipctl), program), args...).CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != code {
			t.Errorf("%s %v: error = %v, want exit code %d:\n%s", program, args, err, code, out)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				t.Errorf("%s %v: output =\n%s\nwant a text that contains %q", program, args, out, w)
			}
		}
	}
	for _, mode := range []string{"auto", "iptables", "userspace"} {
		program.Save(t, other, settings(mode, "auto")+"[userspace]\nintercept = \"bind\"\n")
		fails(78, []string{who, "--replace"}, "vipd", "--config", other)
	}
	fails(1, []string{strings.TrimSuffix(who, ": stop that vipd")}, "vipctl", "cleanup", "--config", other)
	if out := g.Host().Exec(g.vipctl, "cleanup", "--dry-run", "--config", other); !strings.Contains(out, "VIPD-FORWARD") || !strings.Contains(out, "chains of iptables mode") {
		t.Errorf("cleanup --dry-run with another configuration: output =\n%s\nwant a text that contains the chains of iptables mode", out)
	}
	if after := g.kernel(); after != before {
		t.Errorf("first vipd: kernel state before =\n%s\nafterwards =\n%s\nwant no change", before, after)
	}
	if got := g.servers(g.client); !slices.Equal(got, []string{"s1", "s2"}) {
		t.Errorf("while another vipd was refused: servers = %v, want s1 and s2", got)
	}
}

// kernel returns vipd's kernel state, which consists of rules, sets and addresses, without
// counters.
func (g *gateway) kernel() string {
	g.t.Helper()
	return strings.Join([]string{
		g.rules(), g.Host().Exec("ipset", "list", "-n"), g.Host().Exec("ip", "-o", "address", "show", "to", "10.96.0.0/16"),
	}, "\n")
}

// TestSecondVipd starts vipd in a network namespace in which another vipd is running. The second
// vipd must be refused, regardless of its run_dir and mode.
func TestSecondVipd(t *testing.T) {
	g := newGateway(t)
	g.Host().Exec("iptables-nft", "-P", "FORWARD", "ACCEPT") // creates filter chains, so the guard adds its own chains
	g.write(settings("iptables", "auto"), 0, 1)
	g.start()
	g.second()
	g.stop()
	if out, err := exec.Command(g.vipctl, "cleanup", "--config", g.file).CombinedOutput(); err != nil {
		t.Errorf("cleanup after vipd has ended: error = %v, want none\n%s", err, out)
	}
}
