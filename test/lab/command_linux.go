package lab

import (
	"bytes"
	"context"
	"os/exec"
)

// Cmd is a command in a namespace. Only these methods of exec.Cmd work: Start, Wait, Run, Output
// and CombinedOutput.
type Cmd struct {
	*exec.Cmd
	ns *NS
}

// Command prepares a command that runs in the namespace. It is killed when ctx is done or the test
// ends.
func (n *NS) Command(ctx context.Context, name string, args ...string) *Cmd {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(n.lab.ctx, cancel)
	n.lab.t.Cleanup(func() { stop(); cancel() })
	return &Cmd{exec.CommandContext(ctx, name, args...), n}
}

// Start starts the command in the namespace. A process inherits its namespace from the thread that
// forks it.
func (c *Cmd) Start() error { return c.ns.Do(c.Cmd.Start) }

// Run is like exec.Cmd.Run, but runs the command in the namespace.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output is like exec.Cmd.Output, but runs the command in the namespace, and does not change
// Stderr.
func (c *Cmd) Output() ([]byte, error) {
	var b bytes.Buffer
	c.Stdout = &b
	err := c.Run()
	return b.Bytes(), err
}

// CombinedOutput is like exec.Cmd.CombinedOutput, but runs the command in the namespace.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	err := c.Run()
	return b.Bytes(), err
}

// Exec runs a command in the namespace, and returns the command's output. The test fails if the
// command fails.
func (n *NS) Exec(name string, args ...string) string {
	n.lab.t.Helper()
	out, err := n.Command(n.lab.ctx, name, args...).CombinedOutput()
	if err != nil {
		n.lab.t.Fatalf("%s %q in %s: %v\n%s", name, args, n.Name, err, out)
	}
	return string(out)
}
