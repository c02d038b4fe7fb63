//go:build !unix

package main

import (
	"os"
	"syscall"
)

// passedSignals returns the signals that are passed to a registered command.
func passedSignals() []os.Signal { return nil }

func ownGroup() *syscall.SysProcAttr { return nil }

func terminate(p *os.Process) { killGroup(p) } // this system has no SIGTERM

func killGroup(p *os.Process) { _ = p.Kill() } // the process may have just exited

func exitStatus(s *os.ProcessState) int { return s.ExitCode() }
