//go:build unix

package main

import (
	"os"
	"syscall"
)

// passedSignals are those that a registered command gets, too.
func passedSignals() []os.Signal {
	return []os.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
}

// ownGroup keeps the terminal's signals from a command: it is to end after its drain.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) } // it may have ended just now

// killGroup kills the command and what it has started.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // likewise

// exitStatus is the exit code, as shells report it: 128 and the number of the signal that ended it.
func exitStatus(s *os.ProcessState) int {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.ExitCode()
}
