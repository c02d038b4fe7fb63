package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"vipd/cmd/internal/cli"
)

// runCommand runs a command while the endpoint is registered, and returns its exit code.
func (r *registration) runCommand(command []string) error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, append(passedSignals(), os.Interrupt, syscall.SIGTERM)...)
	defer signal.Stop(signals)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout = r.Stdout
	cmd.Stderr = r.Stderr
	cmd.SysProcAttr = ownGroup()
	if f, ok := r.Stdin.(*os.File); ok && !cli.Terminal(f) { // only the foreground process group may read from a terminal
		cmd.Stdin = f
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %v: check its name, and that it is executable", command[0], reason(err))
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the process state has the result
		close(ended)
	}()
	r.run()
	s := &supervised{registration: r, process: cmd.Process, ended: ended, signals: signals}
	s.supervise()
	r.Note("%s has exited: %s", command[0], cmd.ProcessState)
	if code := exitStatus(cmd.ProcessState); code != 0 {
		return &cli.ExitError{Code: code}
	}
	return nil
}

// supervised is a running command whose endpoint is registered.
type supervised struct {
	*registration
	process *os.Process
	ended   <-chan struct{}
	signals <-chan os.Signal
	// stops counts the requests to stop. drained is closed at the end of the drain, and cancel ends
	// the drain early. Both are nil until the first request.
	stops   int
	drained chan struct{}
	cancel  context.CancelFunc
}

// supervise handles signals and requests to stop. It returns when the command has exited and its
// endpoint is removed.
func (s *supervised) supervise() {
	done := s.Done()
	var kill <-chan time.Time
	asked := 0
	for {
		select {
		case <-s.ended:
			if s.drained != nil {
				s.cancel()
				<-s.drained
			}
			s.removeEndpoint()
			return
		case <-done: // the context may be canceled before or after the signal arrives
			done = nil
			s.endRequest(1)
		case sig := <-s.signals:
			if sig != os.Interrupt && sig != syscall.SIGTERM {
				_ = s.process.Signal(sig) // the process may have just exited
				continue
			}
			asked++
			s.endRequest(asked)
		case <-s.drained:
			s.drained = nil
			s.removeEndpoint()
			terminate(s.process)
			timer := time.NewTimer(s.Flags.Duration("kill-after"))
			defer timer.Stop()
			kill = timer.C
		case <-kill:
			s.Note("the command has not exited within %s: killing it", s.Flags.Duration("kill-after"))
			killGroup(s.process)
		}
	}
}

// endRequest handles the nth request to stop. The first starts the drain, the second ends the
// drain, and the third kills the command.
func (s *supervised) endRequest(n int) {
	if n <= s.stops {
		return
	}
	s.stops = n
	switch n {
	case 1:
		ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context))
		drained := make(chan struct{})
		s.cancel, s.drained = cancel, drained
		go func() {
			defer close(drained)
			s.drain(ctx)
		}()
	case 2:
		s.cancel()
	default:
		killGroup(s.process)
	}
}

// removeEndpoint removes the endpoint. It only prints any error, because the lease expires anyway.
func (s *supervised) removeEndpoint() {
	if err := s.leave(); err != nil {
		s.Note("%v", err)
	}
}
