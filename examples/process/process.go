package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a running program.
type Process struct {
	name string
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
	err  error
}

// Start starts a command. Its output is kept, and also written to tee if tee is not nil.
func Start(tee io.Writer, cmd *exec.Cmd) (*Process, error) {
	p := &Process{name: cmd.Args[0], cmd: cmd, out: &output{tee: tee}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	detach(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Done returns a channel that is closed when the program has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns the error with which the program exited, or nil if its exit code was 0. Call it only
// after Done is closed.
func (p *Process) Err() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w\n%s", p.name, p.err, p.Output())
}

// Output returns the output that the program has written so far.
func (p *Process) Output() string { return p.out.text() }

// Pid returns the program's process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal to the program. It is not an error if the program has exited.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %v to %s: %w", s, p.name, err)
	}
	return nil
}

// Kill kills the program, and waits until it has exited.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop sends SIGTERM, and waits until the program has exited. If it is still running after
// patience, Stop kills it and returns an error.
func (p *Process) Stop(patience time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.Err()
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM\n%s", p.name, patience, p.Output())
	}
}

// Await calls ready until it returns nil. It returns an error if ctx is done or the program exits
// before that.
func (p *Process) Await(ctx context.Context, ready func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %w\n%s", p.name, cmpErr(p.err), p.Output())
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w\n%s", p.name, err, p.Output())
		case <-tick.C:
		}
	}
}

// AwaitOutput waits until the program's output contains text.
func (p *Process) AwaitOutput(ctx context.Context, text string) error {
	return p.Await(ctx, func() error {
		if strings.Contains(p.Output(), text) {
			return nil
		}
		return fmt.Errorf("it has not printed %q", text)
	})
}

// cmpErr returns err or, if it is nil, an error that reports the unexpected exit with code 0.
func cmpErr(err error) error {
	if err == nil {
		return errors.New("with exit code 0")
	}
	return err
}

// output is a writer that keeps everything that is written to it.
type output struct {
	mu   sync.Mutex
	kept bytes.Buffer
	tee  io.Writer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept.Write(b)
	if o.tee != nil {
		_, _ = o.tee.Write(b) // the program must continue even if tee fails
	}
	return len(b), nil
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept.String()
}
