//go:build unix

package readme

import (
	"syscall"

	"vipd/examples/process"
)

// interrupt sends what Ctrl-C sends, to the whole process group as a terminal does.
func interrupt(p *process.Process) { _ = syscall.Kill(-p.Pid(), syscall.SIGINT) }
