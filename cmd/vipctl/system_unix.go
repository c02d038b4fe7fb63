//go:build unix

package main

import (
	"os"
	"syscall"
)

// passedSignals returns the signals that are passed to a registered command.
func passedSignals() []os.Signal {
	return []os.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
}

// ownGroup makes a command run in its own process group, so it does not receive the terminal's
// signals. Ctrl-C must not end the command before its endpoint has drained.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) } // the process may have just exited

// killGroup kills the command and its children.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // the process may have just exited

// exitStatus returns the command's exit code. Like a shell, it returns 128 plus the signal's number
// if a signal ended the command.
func exitStatus(s *os.ProcessState) int {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.ExitCode()
}
