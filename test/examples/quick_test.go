package examples

import (
	"context"
	"strings"
	"testing"

	"vipd/examples/process"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestFleetOnOneMachine runs the commands in docs/fleet.md's section about trying a fleet, without
// privilege. A foreground block keeps running while the following blocks run.
func TestFleetOnOneMachine(t *testing.T) {
	lab.Need(t, "etcd", "curl")
	tree, guide := program.New(t), readGuide(t)
	beside := map[string]*process.Process{}
	vars := ""
	for _, b := range guide.blocks {
		if b.whose != "quick" || strings.TrimSpace(b.text) == "make build" { // program.New has already built the programs
			continue
		}
		if name, ok := strings.CutPrefix(b.more, "foreground "); ok {
			beside[name] = foreground(t, tree, name, b.text)
			continue
		}
		script := strings.ReplaceAll(b.text, "curl ", "curl -sS -m 60 ")
		out, err := tree.Shell(t, "set -euo pipefail; "+vars+script, wait.Patience)
		if err != nil {
			t.Fatalf("docs/fleet.md:%d: error = %v, want none", b.line, err)
		}
		for line := range strings.Lines(script) {
			if strings.HasPrefix(line, "export ") {
				vars += line
			}
		}
		t.Log(out)
	}
	both := func(what string) {
		t.Helper()
		seen := map[string]bool{}
		wait.For(t, wait.Patience, what, func() bool {
			out, err := tree.Shell(t, "curl -sS -m 10 127.10.9.1:8080", wait.Patience)
			name, _, _ := strings.Cut(out, " ")
			seen[name] = err == nil
			return seen["a"] && seen["b"]
		})
	}
	both("answers of both servers")
	stop(t, beside["etcd"], "signal: terminated")
	wait.For(t, wait.Patience, "vipd to say that etcd is away", func() bool {
		out, _ := tree.Shell(t, vars+"bin/vipctl status", wait.Patience)
		return strings.Contains(out, "the last good state is served")
	})
	both("answers without etcd")
	again := foreground(t, tree, "etcd", guide.block(t, "quick", "etcd --data-dir"))
	wait.For(t, wait.Patience, "vipd to follow on", func() bool {
		out, _ := tree.Shell(t, vars+"bin/vipctl status", wait.Patience)
		return !strings.Contains(out, "the last good state is served")
	})
	stop(t, beside["b"], "") // stop the registrar before etcd, because it could not remove the endpoint without etcd
	stop(t, again, "signal: terminated")
}

// stop sends SIGINT to a program, like Ctrl-C. how is the expected error; "" means exit status 0.
func stop(t *testing.T, p *process.Process, how string) {
	t.Helper()
	if err := p.Stop(wait.Patience); err != nil && (how == "" || !strings.Contains(err.Error(), how)) {
		t.Error(err)
	}
}

// foreground starts a command that docs/fleet.md runs in its own terminal, and waits until it is
// ready.
func foreground(t *testing.T, tree *program.Tree, name, line string) *process.Process {
	t.Helper()
	p := tree.Run(t, "exec "+line)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound(0))
	defer cancel()
	text := map[string]string{"etcd": "ready to serve client requests", "vipd": "the fleet sees this node", "a": "serving", "b": "is registered"}[name]
	if err := p.AwaitOutput(ctx, text); err != nil {
		t.Fatal(err)
	}
	return p
}
