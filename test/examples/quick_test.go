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

// TestFleetOnOneMachine does what docs/fleet.md says about trying a fleet, without privilege. A block that is said to be
// in the foreground goes on beside the others.
func TestFleetOnOneMachine(t *testing.T) {
	lab.Need(t, "etcd", "curl")
	tree, guide := program.New(t), readGuide(t)
	beside := map[string]*process.Process{}
	vars := ""
	for _, b := range guide.blocks {
		if b.whose != "quick" || strings.TrimSpace(b.text) == "make build" { // program.New has done that
			continue
		}
		name, foreground := strings.CutPrefix(b.more, "foreground ")
		if foreground {
			p := tree.Run(t, "exec "+b.text)
			beside[name] = p
			ready(t, p, map[string]string{"etcd": "ready to serve client requests", "vipd": "the fleet sees this node", "a": "serving", "b": "is registered"}[name])
			continue
		}
		script := strings.ReplaceAll(b.text, "curl ", "curl -sS -m 10 ")
		out, err := tree.Shell(t, "set -euo pipefail; "+vars+script, program.Patience)
		if err != nil {
			t.Fatalf("docs/fleet.md:%d: %v", b.line, err)
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
		wait.For(t, program.Patience, what, func() bool {
			out, err := tree.Shell(t, "curl -sS -m 10 127.10.9.1:8080", program.Patience)
			name, _, _ := strings.Cut(out, " ")
			seen[name] = err == nil
			return seen["a"] && seen["b"]
		})
	}
	both("answers of both servers")
	if err := beside["etcd"].Stop(program.Patience); err != nil && !strings.Contains(err.Error(), "signal") {
		t.Error(err)
	}
	wait.For(t, program.Patience, "vipd to say that etcd is away", func() bool {
		out, _ := tree.Shell(t, vars+"bin/vipctl status", program.Patience)
		return strings.Contains(out, "the last good state is served")
	})
	both("answers without etcd")
}

// ready waits until a program says a text.
func ready(t *testing.T, p *process.Process, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Scaled(program.Patience))
	defer cancel()
	if err := p.AwaitOutput(ctx, text); err != nil {
		t.Fatal(err)
	}
}
