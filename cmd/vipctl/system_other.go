//go:build !unix

package main

import (
	"os"
	"syscall"
)

// passedSignals are those that a registered command gets, too.
func passedSignals() []os.Signal { return nil }

func ownGroup() *syscall.SysProcAttr { return nil }

func terminate(p *os.Process) { killGroup(p) } // nothing gentler is to be had

func killGroup(p *os.Process) { _ = p.Kill() } // it may have ended just now

func exitStatus(s *os.ProcessState) int { return s.ExitCode() }
